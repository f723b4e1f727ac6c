"""Synthetic facts for conversations: a sentence that states one thing, and a question for it in other words; seeded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Final, NamedTuple


class Fact(NamedTuple):
    """A unique sentence, the fixed question for it, and of which kind it is; questions of LoCoMo have a number."""

    sentence: str
    question: str
    kind: str


class Kind(NamedTuple):
    """What is said of a subject and how it is asked for; ``{s}`` is the subject, other names are drawn."""

    name: str
    sentence: str
    question: str


_PEOPLE: Final = (
    Kind(
        "diet", "{s} cannot eat {food} since a bad reaction in {month}.", "What must I leave out when {s} dines here?"
    ),
    Kind("home", "{s} moved to a flat at {number} {street} Street.", "What is the home address of {s}?"),
    Kind("band", "{s} plays the {instrument} in a band called {adjective} {animal}.", "Which music group is {s} in?"),
    Kind(
        "school", "The daughter of {s} starts school in {city} in {month}.", "Where will the child of {s} have classes?"
    ),
    Kind("car", "{s} drives a {colour} van that needs new {part}.", "What has to be mended on the vehicle of {s}?"),
    Kind("phone", "{s} can be reached at extension {number} after four.", "Which number do I dial to talk to {s}?"),
    Kind("plans", "{s} wants to retire to {city} and open a {shop}.", "What are the plans of {s} for old age?"),
    Kind("loan", "{s} promised to return the {tool} by {weekday}.", "What did {s} borrow from us?"),
)
_PROJECTS: Final = (
    Kind("deadline", "The deadline of {s} slipped to {number} {month}.", "By when does {s} have to be finished?"),
    Kind("backups", "{s} keeps its backups in a vault in {city}.", "Where are copies of the data of {s} stored?"),
    Kind("budget", "The budget of {s} was cut to {number} thousand euros.", "How much money is left for {s}?"),
    Kind("lead", "{person} took over {s} on a {weekday}.", "Who leads {s} now?"),
    Kind(
        "server", "The test server of {s} answers on port {number}.", "How do I connect to the staging machine of {s}?"
    ),
)
_SUPPLIERS: Final = (
    Kind("price", "{s} raised the price of {goods} to {number} euros a pallet.", "What does {s} charge for a load?"),
    Kind("gate", "Deliveries from {s} come through gate {number}.", "Which entrance do the trucks of {s} use?"),
    Kind(
        "contract", "The contract with {s} renews itself in {month} for {number} weeks.", "When can we get out of {s}?"
    ),
)
_HOUSES: Final = (
    Kind("key", "The key to {s} lies under the {colour} {thing}.", "How do I get into {s} when nobody is there?"),
    Kind("heating", "The boiler in {s} was checked in {month} by {person}.", "Who looked at the heating of {s}?"),
    Kind("beds", "{s} sleeps {number} guests in {colour} rooms.", "How many visitors can stay at {s}?"),
)
_OBJECTS: Final = (
    Kind("damage", "I spilled {drink} over {s} while {person} was visiting.", "What left the stain on {s}?"),
    Kind("origin", "We found {s} at a market in {city} for {number} euros.", "Where did we buy {s}?"),
    Kind("heir", "{person} will inherit {s} one day.", "To whom will {s} go after my death?"),
)
_VALUES: Final = {
    "food": "walnuts shellfish celery mustard lupins sesame buckwheat strawberries rye mango",
    "month": "January February March April May June July August September October November December",
    "weekday": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "street": "Linden Harbour Chapel Orchard Quarry Foundry Meadow Tannery Lantern Saddler Cooper Weaver",
    "instrument": "cello trombone banjo oboe accordion harp bassoon mandolin zither clarinet",
    "adjective": "Crimson Silent Crooked Golden Restless Hollow Velvet Frozen Hungry Gentle",
    "animal": "Badgers Herons Otters Lynxes Beetles Magpies Hares Walruses Geckos Moths",
    "city": "Lisbon Tallinn Bergen Ghent Krakow Porto Graz Turku Malmo Zadar Bilbao Verona Leeds Cork Nantes Riga",
    "colour": "green yellow purple orange grey turquoise brown white maroon silver",
    "part": "brakes tyres mirrors wipers headlights plugs hinges seats",
    "shop": "bakery bookshop vineyard florist brewery guesthouse pottery cinema",
    "tool": "ladder chainsaw drill wheelbarrow tent projector sander trailer",
    "goods": "timber flour gravel bottles resin paper copper cement wool glass",
    "thing": "flowerpot bench lantern barrel doormat sundial birdhouse trough",
    "drink": "cocoa ink gravy cider varnish espresso beetroot vinegar",
}
_FIRST: Final = (  # noqa: SIM905 - easier to read
    "Ines Tomas Greta Anders Livia Bruno Selma Oskar Petra Dario Hanna Milos Clara Ruben Ylva Stefan Noor Emil Agata "
    "Jonas Mira Lukas Odile Viktor"
).split()
_LAST: Final = (  # noqa: SIM905 - easier to read
    "Calder Brandt Okafor Lindqvist Moreau Vasari Novak Tanaka Haddad Osei Petrov Keller Duarte Sorensen Kovacs Weiss "
    "Marchetti Dubois Halloran Ferreira"
).split()
_PROJECT_NAMES: Final = (  # noqa: SIM905 - easier to read
    "Juniper Basalt Comet Harrow Mistral Obsidian Pinnacle Quartz Saffron Tundra Umber Vesper"
).split()
_PROJECT_KINDS: Final = ("project {}", "programme {}", "study {}", "initiative {}")
_COMPANIES: Final = "Ackerley Bolt Corvin Drayton Elmstead Farrow Gantry Hexham Inglis Jarvik Kestrel Lomax".split()  # noqa: SIM905
_COMPANY_KINDS: Final = ("{} Brothers", "{} Logistics", "{} Trading", "{} Works")
_HOUSE_NAMES: Final = "Alder Birch Cedar Damson Elder Fir Gorse Hazel Ivy Juniper Larch Maple".split()  # noqa: SIM905
_HOUSE_KINDS: Final = ("{} Cottage", "{} Lodge", "{} Farm", "{} Mill")
_OBJECT_KINDS: Final = "cabinet armchair rug clock mirror desk trunk vase".split()  # noqa: SIM905
_WOODS: Final = "walnut copper marble wicker velvet enamel bamboo leather pewter porcelain".split()  # noqa: SIM905

PEOPLE: Final = [f"{first} {last}" for first, last in product(_FIRST, _LAST)]


def _named(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    return [pattern.format(name) for name, pattern in product(names, patterns)]


_SUBJECTS: Final = (
    (_PEOPLE, PEOPLE),
    (_PROJECTS, _named(_PROJECT_KINDS, _PROJECT_NAMES)),
    (_SUPPLIERS, _named(_COMPANY_KINDS, _COMPANIES)),
    (_HOUSES, _named(_HOUSE_KINDS, _HOUSE_NAMES)),
    (_OBJECTS, [f"the {wood} {thing}" for wood, thing in product(_WOODS, _OBJECT_KINDS)]),
)


def drawn(text: str, subject: str, random: Random) -> str:
    """``text`` with the subject, and with values for its other names."""
    values = {name: random.choice(words.split()) for name, words in _VALUES.items()}
    filled = text.format(s=subject, number=random.randrange(11, 9_000), person=random.choice(PEOPLE), **values)
    return filled[0].upper() + filled[1:]


class Facts:
    """The facts of one conversation. No two have the same kind and subject; a subject has as many facts as kinds."""

    def __init__(self, count: int, random: Random) -> None:
        self._random = random
        self.subjects: list[str] = []
        self._left = iter(self._chosen(count))

    def next(self) -> Fact:
        """One that was not given yet."""
        kind, subject = next(self._left)
        sentence = drawn(kind.sentence, subject, self._random)
        return Fact(sentence, kind.question.format(s=subject), kind.name)

    def _chosen(self, count: int) -> list[tuple[Kind, str]]:
        """``count`` pairs of kind and subject: of few subjects all that there is to say, in any order."""
        pairs: list[tuple[Kind, str]] = []
        every = [(kinds, subject) for kinds, subjects in _SUBJECTS for subject in subjects]
        self._random.shuffle(every)
        for kinds, subject in every:
            self.subjects.append(subject)
            pairs += [(kind, subject) for kind in kinds]
            if len(pairs) >= count:
                break
        self._random.shuffle(pairs)
        return pairs
