"""The words of the embedded grammar: English and French side by side, with the features that agree.

No French word begins with an aspirated h, so a first letter tells whether the word before it elides.
"""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun, singular and plural."""

    english: list[str]
    french: list[str]
    feminine: bool
    kind: str


class Adjective(NamedTuple):
    """An adjective; French masculine and feminine singular, then masculine and feminine plural."""

    english: str
    french: list[str]
    place: str
    """Where French puts it: "before" or "after" the noun."""
    kinds: list[str]
    """The kinds of nouns it goes with."""


class Verb(NamedTuple):
    """A verb; English base form and third person ("to be": all), French in the persons je, il, nous, vous, ils."""

    english: list[str]
    french: list[str]
    subjects: list[str]
    objects: list[str]
    """The kinds of its direct object; none where it takes none."""


class Determiner(NamedTuple):
    """A determiner; English singular and plural, French masculine, feminine and plural, "-" for a missing number."""

    english: list[str]
    french: list[str]


class Pronoun(NamedTuple):
    """A subject pronoun, with the place of its verb in `Verb.french` and of its adjective in `Adjective.french`."""

    english: str
    french: str
    person: int
    form: int


class Preposition(NamedTuple):
    """A preposition and the kinds of nouns that follow it."""

    english: str
    french: str
    kinds: list[str]


def _rows(table: str) -> list[list[list[str]]]:
    """The rows of a table: cells between bars, words between spaces, an underscore for a space in a word."""
    rows = (row.split("|") for row in table.strip().splitlines())
    return [[[word.replace("_", " ") for word in cell.split()] for cell in row] for row in rows]


_NOUNS = """
man men | homme hommes | m | person
woman women | femme femmes | f | person
boy boys | garçon garçons | m | person
girl girls | fille filles | f | person
king kings | roi rois | m | person
queen queens | reine reines | f | person
uncle uncles | oncle oncles | m | person
aunt aunts | tante tantes | f | person
cat cats | chat chats | m | animal
horse horses | cheval chevaux | m | animal
bird birds | oiseau oiseaux | m | animal
cow cows | vache vaches | f | animal
hen hens | poule poules | f | animal
apple apples | pomme pommes | f | food
pear pears | poire poires | f | food
cake cakes | gâteau gâteaux | m | food
egg eggs | œuf œufs | m | food
book books | livre livres | m | thing
hat hats | chapeau chapeaux | m | thing
tree trees | arbre arbres | m | thing
chair chairs | chaise chaises | f | thing
flower flowers | fleur fleurs | f | thing
garden gardens | jardin jardins | m | place
hotel hotels | hôtel hôtels | m | place
house houses | maison maisons | f | place
school schools | école écoles | f | place
street streets | rue rues | f | place
"""
_ADJECTIVES = """
small | petit petite petits petites | before | person animal food thing place
big | grand grande grands grandes | before | animal food thing place
beautiful | beau belle beaux belles | before | person animal thing place
new | nouveau nouvelle nouveaux nouvelles | before | thing place
young | jeune jeune jeunes jeunes | before | person animal
black | noir noire noirs noires | after | animal thing
white | blanc blanche blancs blanches | after | animal thing
red | rouge rouge rouges rouges | after | food thing
green | vert verte verts vertes | after | food thing
happy | heureux heureuse heureux heureuses | after | person animal
tired | fatigué fatiguée fatigués fatiguées | after | person animal
sad | triste triste tristes tristes | after | person animal
strange | étrange étrange étranges étranges | after | person animal thing place
"""
_VERBS = """
eat eats | mange mange mangeons mangez mangent | person animal | food
buy buys | achète achète achetons achetez achètent | person | animal food thing
sell sells | vends vend vendons vendez vendent | person | animal food thing
see sees | vois voit voyons voyez voient | person animal | person animal food thing place
look_for looks_for | cherche cherche cherchons cherchez cherchent | person animal | person animal food thing place
find finds | trouve trouve trouvons trouvez trouvent | person animal | person animal food thing place
love loves | aime aime aimons aimez aiment | person | person animal food place
draw draws | dessine dessine dessinons dessinez dessinent | person | person animal food thing place
listen_to listens_to | écoute écoute écoutons écoutez écoutent | person animal | person animal
wait_for waits_for | attends attend attendons attendez attendent | person animal | person animal
sing sings | chante chante chantons chantez chantent | person |
sleep sleeps | dors dort dormons dormez dorment | person animal |
work works | travaille travaille travaillons travaillez travaillent | person |
play plays | joue joue jouons jouez jouent | person animal |
"""
_DETERMINERS = """
the the | le la les
a some | un une des
this these | ce cette ces
my my | mon ma mes
our our | notre notre nos
every - | chaque chaque -
- two | - - deux
"""
_PRONOUNS = """
I | je | 0 | 0
he | il | 1 | 0
she | elle | 1 | 1
we | nous | 2 | 2
you | vous | 3 | 2
they | ils | 4 | 2
"""
_PREPOSITIONS = """
in | dans | place
behind | derrière | person animal place
in_front_of | devant | person animal place
near | près_de | person animal place
with | avec | person animal
"""

NOUNS = [Noun(en, fr, gender == "f", kind) for en, fr, (gender,), (kind,) in _rows(_NOUNS)]
ADJECTIVES = [Adjective(en, fr, place, kinds) for (en,), fr, (place,), kinds in _rows(_ADJECTIVES)]
VERBS = [Verb(*row) for row in _rows(_VERBS)]
TO_BE = Verb(["am", "is", "are", "are", "are"], ["suis", "est", "sommes", "êtes", "sont"], [], [])
DETERMINERS = [Determiner(*row) for row in _rows(_DETERMINERS)]
PRONOUNS = [Pronoun(en, fr, int(person), int(form)) for (en,), (fr,), (person,), (form,) in _rows(_PRONOUNS)]
PREPOSITIONS = [Preposition(en, fr, kinds) for (en,), (fr,), kinds in _rows(_PREPOSITIONS)]
ADVERBS = {"often": "souvent", "always": "toujours"}
