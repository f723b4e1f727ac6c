"""Words that the reading of statements knows: verbs and their forms, people, jobs, states."""

from __future__ import annotations

from typing import Final


def word_set(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


_PLURAL_KIN: Final = "brother sister son daughter child kid cousin uncle aunt nephew niece grandchild twin sibling"
_PLURAL_PEOPLE: Final = "friend colleague neighbour neighbor classmate roommate flatmate teammate student client ex"
_IN_LAW: Final = "brother-in-law sister-in-law stepbrother stepsister stepson stepdaughter godson goddaughter"
PEOPLE: Final = word_set(
    f"{_PLURAL_KIN} {_PLURAL_PEOPLE} {_IN_LAW} bruder schwester sohn tochter freund freundin kollege"
)
"""Those of whom somebody may have several."""
PETS: Final = word_set("dog cat hamster rabbit horse parrot fish tortoise turtle bird pet hund katze puppy kitten")
MANY: Final = word_set(
    "hobby hobbies language languages allergy allergies skill skills interest interests medication medicine plant"
    " instrument sport game book film song band-member country bike device goal problem idea question point reason rule"
)
"""Other things of which somebody may have several."""
ONE: Final = word_set(
    "name surname birthday employer job residence address e-mail phone deadline status partner age height weight"
    " diet boss landlord gym doctor dentist bank shoe-size size rent budget salary nickname title timezone currency"
)
"""Attributes with one value at a time, whatever it looks like."""
SYNONYMS: Final = {
    name: one
    for one, names in {
        "favourite": "favorite",
        "colour": "color",
        "film": "movie",
        "boss": "manager supervisor chef",
        "phone": "telephonenumber phonenumber number telephone telefonnummer handynummer nummer phone",
        "mobile": "mobilenumber cellphone cell cellnumber mobilephone cellphonenumber mobilephonenumber",
        "landline": "landlinenumber",
        "e-mail": "email emailaddress e-mailaddress mail mailaddress mailadresse e-mail-adresse",
        "residence": "home hometown wohnort placeofresidence cityofresidence",
        "employer": "company workplace arbeitgeber",
        "job": "profession occupation jobtitle beruf role position",
        "birthday": "dateofbirth birthdate birthdaydate geburtstag",
        "surname": "lastname familyname nachname",
        "name": "firstname fullname vorname",
        "partner": "wife husband spouse girlfriend boyfriend fianc\u00e9 fianc\u00e9e fiance fiancee freund "
        "freundin frau mann",
        "deadline": "duedate due",
        "timezone": "zone",
    }.items()
    for name in names.split()
}
_JOB_NAMES: Final = (
    "nurse midwife teacher doctor lawyer engineer developer programmer architect baker cook chef waiter waitress pilot"
    " driver student librarian journalist writer author editor designer artist musician actor actress painter dentist"
    " surgeon vet veterinarian pharmacist physicist chemist biologist scientist researcher professor lecturer tutor"
    " accountant analyst consultant manager director lead principal banker broker trader salesman saleswoman clerk"
    " secretary receptionist assistant administrator officer soldier policeman policewoman firefighter paramedic"
    " electrician plumber carpenter mechanic technician builder gardener farmer florist hairdresser barber tailor"
    " photographer translator interpreter psychologist therapist physiotherapist counsellor counselor judge notary"
    " retiree pensioner apprentice intern trainee founder entrepreneur freelancer contractor cashier cleaner janitor"
    " butcher brewer bartender barista flight-attendant steward stewardess sailor captain fisherman miner welder"
    " operator specialist coordinator supervisor coach trainer nanny caretaker carer economist statistician"
    " mathematician historian philosopher geologist astronomer optician radiologist anaesthetist paediatrician"
    " cardiologist postman courier roofer bricklayer locksmith"
)
JOBS: Final = word_set(_JOB_NAMES)
"""Head words of what somebody is by profession."""
DIETS: Final = word_set("vegetarian vegan pescatarian pescetarian flexitarian omnivore vegetarier vegetarierin veganer")
MARITAL: Final = word_set("single engaged married divorced widowed separated")
STATES: Final = word_set(
    "open closed done finished complete completed blocked cancelled canceled paused shipped released live merged"
    " overdue pending delayed ready running broken fixed resolved approved rejected abandoned archived online offline"
)
"""What a thing is that has a status."""
DATED: Final = word_set(
    "deadline meeting appointment flight launch release exam interview party wedding trip date train"
)
"""What is moved to another time."""
NO_PLACE: Final = word_set(
    "a an the my our his her their fear hope peace poverty pain denial luxury harmony sin constant bed front it "
    "this that"
    " linux windows mac macos android ios iphone python rust java javascript typescript firefox chrome slack "
    "teams github"
    " gitlab aws azure vim emacs helix neovim postgres postgresql mysql sqlite mongodb docker kubernetes tidal spotify"
    " tea coffee another ein eine einem einer der die das dem den meine meinem"
)
"""What follows "in" and "to" without being a place, when it is the first word."""
NO_EMPLOYER: Final = word_set(
    "home night nights least weekends the-moment a-living free myself minimum noon dawn least present my our it "
    "this that"
    " his her their all first last about what peace school-time a-while something someone years days hours both "
    "moment time living library"
)
_REGULAR: Final = (
    "live work reside play like love enjoy hate dislike detest adore learn own use drink smoke prefer watch collect"
    " support follow ride study practise practice manage need visit cook bake listen own rent subscribe attend "
    "call report"
)
_PASTS: Final = {
    "drive": "drove driven",
    "speak": "spoke spoken",
    "eat": "ate eaten",
    "have": "had",
    "go": "went",
    "run": "ran",
    "wear": "wore worn",
    "read": "read",
    "take": "took taken",
    "weigh": "weighed",
    "pay": "paid",
    "sleep": "slept",
    "be": "was were been",
    "swim": "swam swum",
    "earn": "earned",
    "come": "came",
    "bank": "banked",
    "deploy": "deployed",
    "walk": "walked",
    "cycle": "cycled",
    "open": "opened",
    "get": "",
}
_DOUBLED: Final = word_set("run swim jog")


def _gerund(verb: str) -> str:
    if verb in _DOUBLED:
        return f"{verb}{verb[-1]}ing"
    return f"{verb[:-1]}ing" if verb.endswith("e") and verb != "be" else f"{verb}ing"


def _regular_past(verb: str) -> str:
    if verb.endswith("e"):
        return f"{verb}d"
    return f"{verb[:-1]}ied" if verb.endswith("y") and verb[-2] not in "aeo" else f"{verb}ed"


def _third(verb: str) -> str:
    if verb.endswith("y") and verb[-2] not in "aeo":
        return f"{verb[:-1]}ies"
    return f"{verb}es" if verb.endswith(("ch", "sh", "o", "s")) else f"{verb}s"


VERBS: Final = word_set(_REGULAR) | frozenset(_PASTS)
PAST_FORMS: Final = {_regular_past(verb): verb for verb in word_set(_REGULAR)} | {
    form: verb for verb, forms in _PASTS.items() for form in forms.split()
}
GERUNDS: Final = {_gerund(verb): verb for verb in VERBS}
PRESENT_FORMS: Final = (
    {_third(verb): verb for verb in VERBS} | {"has": "have", "is": "be", "are": "be", "am": "be"} | {"loves": "like"}
)
EVENTS: Final = word_set(
    "moved relocated left quit resigned joined started became become switched changed replaced retired graduated turned"
    " sold stopped gave given got gotten gone went born migrated weaned lost broke handed dropped"
)
"""Past forms that tell what holds since."""
