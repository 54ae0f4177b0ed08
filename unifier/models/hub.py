"""Download and upload of a model's folder from and to the Hugging Face hub."""

import glob
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

HUB = "hub:"
"""The start of a reference to a model on the hub, as in hub:USER/NAME."""

ALLOWED_FILES = ("config.json", "model.safetensors", "tensors.safetensors", "README.md", "*-*.json")
"""Patterns of the files that are downloaded: a model's folder, with its vocabularies. Other files are left out."""

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def download_model(reference: str, revision: str | None = None) -> Path:
    """Download a model from the hub into Hugging Face's cache, and return its folder. No code is executed.

    Without a network, or with HF_HUB_OFFLINE=1, the folder comes from the cache.

    Args:
        reference: hub:USER/NAME.
        revision: A branch, a tag or a commit. None means the main branch.

    Raises:
        InputError: The model does not exist, is private, or is neither reachable nor in the cache.
    """
    from huggingface_hub import snapshot_download

    repository = _check_repository(reference.removeprefix(HUB))
    with _name_faults(f"{reference}{f' at revision {revision}' if revision else ''}"):
        folder = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(ALLOWED_FILES),
            library_name="unifier",
            library_version=version("unifier-torch"),
        )
    return Path(folder)


def upload_model(folder: Path, names: Sequence[str], repository: str, *, private: bool | None, message: str) -> str:
    """Upload the files of a model to a repository of the hub, which is created if it does not exist.

    Args:
        folder: The model's folder.
        names: The names of the files.
        repository: USER/NAME.
        private: True for a new repository that only its owner can read. None means the owner's default.
        message: The message of the commit.

    Returns:
        The address of the commit.

    Raises:
        InputError: The name is not valid, the hub cannot be reached, or the user may not write there.
    """
    from huggingface_hub import HfApi

    repository = _check_repository(repository.removeprefix(HUB))
    with _name_faults(f"{HUB}{repository}"):
        api = HfApi(library_name="unifier", library_version=version("unifier-torch"))
        api.create_repo(repository, private=private, exist_ok=True)
        patterns = [glob.escape(name) for name in names]
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=patterns, commit_message=message
        )
    return commit.commit_url


def _check_repository(repository: str) -> str:
    if not REPOSITORY.fullmatch(repository):
        raise InputError(f"{HUB}{repository}: a model on the hub is named {HUB}USER/NAME")
    return repository


@contextmanager
def _name_faults(model: str) -> Generator[None]:
    """Convert the errors of the hub in the `with` block to an InputError that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError as error:
        raise InputError(f"{model}: the model has no such revision; give a branch, a tag or a commit") from error
    except errors.HFValidationError as error:
        raise InputError(f"{model}: not a valid name ({one_line(error)})") from error
    except errors.LocalEntryNotFoundError as error:
        raise InputError(
            f"{model} cannot be downloaded ({_cause(error)}), and is not complete in the cache: connect to the "
            "network, or unset HF_HUB_OFFLINE; or download the model on another machine, and give the path of the "
            "copied folder"
        ) from error
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403, 404):
            raise InputError(
                f"{model}: there is no such model, or you have no access; check the name, and log in with "
                "`hf auth login` or HF_TOKEN"
            ) from error
        raise InputError(f"{model}: the hub refuses the request ({one_line(error)}); try again later") from error
    except OSError as error:
        if not isinstance(error, ConnectionError):  # Such as a full disk.
            raise
        raise _unreachable(model, error) from error
    except Exception as error:  # The network library depends on the version of huggingface_hub.
        raise _unreachable(model, error) from error


def _unreachable(model: str, error: Exception) -> InputError:
    return InputError(
        f"{model}: the hub cannot be reached ({_cause(error)}); connect to the network, and unset HF_HUB_OFFLINE"
    )


def _cause(error: BaseException) -> str:
    """Return the first line of the first cause, because the hub's messages have many lines."""
    cause = error.__cause__ or error
    return ": ".join([type(cause).__name__, *str(cause).splitlines()[:1]])
