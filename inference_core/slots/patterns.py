"""What English verbs and requests look like: patterns, and what they say."""

from __future__ import annotations

import re
from typing import Final

from inference_core.slots.slot import ANY, Holds
from inference_core.slots.words import DIETS, MARITAL, word_set

LINKED: Final = re.compile(
    r"\b(?:because|although|though|which|who|whom|when|where|than|so that|since|until|unless|it|that|them|this"
    r"|there)\b",
    re.IGNORECASE,
)
LANGUAGES: Final = (
    "English|German|French|Spanish|Italian|Portuguese|Dutch|Polish|Czech|Russian|Ukrainian|Chinese|Japanese"
    "|Korean|Arabic|"
    "Turkish|Swedish|Danish|Norwegian|Finnish|Greek|Hindi"
)
ANSWERS: Final = "(?:answers?|replies|responses?|explanations?)"
STYLES: Final = {
    word: (axis, words.split(maxsplit=1)[0])
    for axis, sides in {
        "length of answers": ("short brief concise terse shorter", "long detailed thorough verbose longer elaborate"),
        "tone of answers": ("formal polite", "informal casual relaxed"),
    }.items()
    for words in sides
    for word in words.split()
}
AMOUNT: Final = re.compile(r"\A(?:(?:a )?lots? of|a bit of|some|much|many|too much|plenty of) ", re.IGNORECASE)
LIKES: Final = {
    "love": ("like", False),
    "enjoy": ("like", False),
    "adore": ("like", False),
    "dislike": ("like", True),
    "hate": ("like", True),
    "detest": ("like", True),
    "own": ("have", False),
}
GENERIC: Final = word_set(
    "like love enjoy adore dislike hate detest play speak learn have own use eat drink smoke prefer go "
    "run take read watch study drive collect support follow wear ride weigh pay sleep swim earn bank "
    "deploy walk cycle rent attend practise practice bake cook subscribe report open get"
)
MEASURED: Final = word_set("run walk cycle swim pay earn sleep drink smoke weigh take get")
LINKS: Final = {
    "go to": Holds.USUALLY_ONE,
    "bank with": Holds.ONE,
    "report to": Holds.USUALLY_ONE,
    "deploy with": Holds.USUALLY_ONE,
}
VERBS_HOLD: Final = {"study": Holds.USUALLY_ONE, "drive": Holds.USUALLY_ONE}
FORMS: Final = {
    verb: tuple((re.compile(pattern, re.IGNORECASE), attribute, holds) for pattern, attribute, holds in forms)
    for verb, forms in {
        "live": [
            (r"in (?P<value>.+?)(?: with (?:my|our) .+)?", "residence", Holds.ONE),
            (r"at (?P<value>(?:number )?\d.*)", "address", Holds.ONE),
        ],
        "reside": [(r"in (?P<value>.+)", "residence", Holds.ONE)],
        "work": [
            (r"as (?:a |an |the )?(?P<value>.+)", "job", Holds.ONE),
            (r"(?:at|for) (?P<value>.+?)(?: as (?:an?|the) .+)?", "employer", Holds.ONE),
        ],
        "be": [
            (r"(?:based|located|at home) in (?P<value>.+)", "residence", Holds.ONE),
            (r"employed (?:at|by|with) (?P<value>.+)", "employer", Holds.ONE),
            (r"(?:a |an )(?P<value>.+)", "job", Holds.ONE),
            (r"(?P<value>\d{1,3}) years (?:old|of age)", "age", Holds.ONE),
            (r"(?P<value>\d[\d.,]* ?c?m) tall", "height", Holds.ONE),
            (rf"(?:a |an )?(?P<value>{'|'.join(DIETS)})", "diet", Holds.ONE),
            (r"on (?:an? |the )?(?P<value>\w+) diet", "diet", Holds.ONE),
            (r"allergic to (?P<value>.+)", "allergy", Holds.SEVERAL),
            (r"from (?P<value>.+)", "origin", Holds.ONE),
            (rf"(?P<value>{'|'.join(MARITAL)})(?: to \w+)?", "marital status", Holds.ONE),
            (r"born on (?:the )?(?P<value>.+)", "birthday", Holds.ONE),
            (r"due (?:on |by )?(?P<value>.+)", "deadline", Holds.ONE),
        ],
        "have": [
            (r"an? (?P<value>\w+) allergy", "allergy", Holds.SEVERAL),
        ],
        "eat": [(r"(?P<value>meat)", "diet", Holds.ONE)],
    }.items()
}
EVENTS: Final = [
    (verb, re.compile(pattern, re.IGNORECASE), attribute, ends)
    for verbs, pattern, attribute, ends in [
        ("moved relocated", r"(?:house |back |over )?to (?P<value>[A-Z\u00c0-\u00de].*)", "residence", False),
        ("moved relocated", r"(?:house |back )?from (?P<former>.+?) to (?P<value>.+)", ANY, False),
        ("switched changed migrated went gone converted", r"from (?P<former>.+?) to (?P<value>.+)", ANY, False),
        ("replaced", r"(?P<former>.+?) (?:with|by) (?P<value>.+)", ANY, False),
        ("changed switched", r"my (?P<what>[\w -]+?) to (?P<value>.+)", ANY, False),
        ("changed switched", r"(?:jobs|employers?|companies)", "employer", True),
        ("joined", r"(?!the |an? )(?P<value>.+)", "employer", False),
        ("started", r"(?:a (?:new )?job |working |work )(?:at|with|for) (?P<value>.+)", "employer", False),
        ("started", r"(?:a (?:new )?job |working |work )?as an? (?P<value>.+)", "job", False),
        ("left quit lost", r"(?:my job (?:at|with) )(?P<value>.+)", "employer", True),
        ("left quit", r"(?P<value>.+)", "employer", True),
        ("quit left lost", r"my job", "employer", True),
        ("handed", r"in my notice(?: (?:at|to) (?P<value>.+))?", "employer", True),
        ("dropped", r"(?P<value>.+)", ANY, True),
        ("resigned", r"(?:from (?P<value>.+))?", "employer", True),
        ("got", r"(?:laid off|fired|sacked)(?: (?:from|by|at) (?P<value>.+))?", "employer", True),
        ("retired graduated", r"(?:early)?", "job", True),
        ("became become", r"(?:a |an )(?P<value>.+)", "job", False),
        ("went gone became become turned", rf"(?:a |an )?(?P<value>{'|'.join(DIETS)})", "diet", False),
        ("turned", r"(?P<value>\d{1,3})", "age", False),
        ("got gotten become became", rf"(?P<value>{'|'.join(MARITAL)})(?: to \w+)?", "marital status", False),
        ("sold lost", r"(?:my|our|the) (?P<value>.+)", ANY, True),
        ("got gotten", r"rid of (?:my|our|the) (?P<value>.+)", ANY, True),
        ("gave given", r"up (?:on )?(?P<value>.+)", ANY, True),
        ("broke", r"up with (?P<value>.+)", "partner", True),
    ]
    for verb in verbs.split()
]
_UNITS: Final = "metric|imperial"
REQUESTS: Final = [
    (re.compile(rf"(?:please |always |only )*{pattern}(?: please)?", re.IGNORECASE), attribute, ends)
    for pattern, attribute, ends in [
        (
            rf"(?:answer|reply|respond|write|speak|talk)(?: to)?(?: me)?(?: always| only)? in (?P<value>{LANGUAGES})",
            "language of answers",
            False,
        ),
        (rf"(?:keep|make|give)(?: me)?(?: your| the| all)? {ANSWERS} (?P<value>\w+)", "style", False),
        (rf"(?:give|write)(?: me)? (?P<value>\w+) {ANSWERS}", "style", False),
        (rf"use (?P<value>{_UNITS}) units", "units", False),
        (r"call me (?P<value>.+)", "form of address", False),
        (r"(?:(?:do not|never) use|(?:stop|avoid) using) (?P<value>[\w -]+)", "prefer", True),
        (r"use (?P<value>[\w -]+)", "prefer", False),
    ]
]
