"""Texts with secrets, and harmless texts that look like it; random values by seed, so that no secret is real.

`known` has the formats of ``inference_core/memory/secrets.toml``. `held_out` has formats that no rule was written for.
`benign` is what assistants are told of orders, commits, files and accounts. `hostile` is made to make expressions slow.
"""

from __future__ import annotations

import base64
import re
import string
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from random import Random
from typing import Any, NamedTuple

_ALPHABETS = {
    "": string.ascii_letters + string.digits,
    "x": string.digits + "abcdef",
    "d": string.digits,
    "A": string.ascii_uppercase + string.digits,
    "a": string.ascii_lowercase + string.digits,
    "b": string.ascii_letters + string.digits + "-_",
    "s": string.ascii_letters + string.digits + "+/",
    "w": string.ascii_lowercase,
}
_PLACES = (
    "{}",
    "Here it is: {} - keep it.",
    "We use `{}` in production.",
    '{{"value": "{}", "since": 2024}}',
    "Der Schlüssel lautet\n{}\nund gilt bis Mai.",
    "Ada wrote ({}) on the board.",
    "export X='{}'",
    "これです：{}。",  # noqa: RUF001 - as it is written
)
_OTHERS = (
    ("password", "My password is {0}.", "{6w}{2d}!"),
    ("password", "password: {0}", "{8}4"),
    ("password", "DB_PASSWORD={0}", "{12}7"),
    ("password", '{{"user": "ada", "passwd": "{0}"}}', "{9}1x"),
    ("password", "Das Passwort ist {0}", "Sommer{4d}!"),
    ("password", "mot de passe : {0}", "{7w}{3d}"),
    ("password", "La contraseña es {0}, no la pierdas.", "{7w}{2d}"),
    ("password", "пароль: {0}", "{6w}{3d}"),
    ("password", "密码是{0}", "{5w}{4d}"),
    ("secret_key", "API_KEY={0}", "{32x}"),
    ("secret_key", "api key: {0}", "{24}5"),
    ("secret_key", 'client_secret = "{0}"', "{32}9"),
    ("secret_key", "aws_secret_access_key = {0}", "{38s}7a"),
    ("secret_key", "x-api-key: {0}", "{40x}"),
    ("secret_key", "The access token is {0}", "{28}3"),
    ("secret_key", "auth_token: '{0}'", "{8x}-{4x}-{4x}-{4x}-{12x}"),
    ("payment_card", "Pay with my visa {0}, please.", "4{15l}"),
    ("payment_card", "Card: {0}", "51{2d} {4d} {4d} {4l}"),
    ("payment_card", "{0}", "4{3d}-{4d}-{4d}-{4l}"),
    ("payment_card", "amex {0} exp 11/29", "37{13l}"),
    ("connection_password", "redis://:{0}@cache:6379/0", "{20}"),
    ("connection_password", "mongodb+srv://app:{0}@c0.mongodb.net/x", "{16}"),
)
_HELD_OUT = (
    "M{23}.G{5b}.{38b}", "pat{14}.{64x}", "ATBB{32}", "HRKU-AA{58b}", "sk.eyJ{60b}.{22b}", "sl.B{130b}", "CFPAT-{43b}",
    "1/{16d}:{32x}", "{32x}", "00{40b}", "tfp_{59b}", "EZAK{54}", "FLWSECK-{32x}-X", "duffel_live_{43b}",
    "CLOJARS_{60x}", "tk-us-{48b}", "pnu_{36a}", "rdme_{70a}", "shippo_live_{40x}", "fio-u-{64b}",
    "sdk-{8x}-{4x}-{4x}-{4x}-{12x}", "s-s4t2ud-{64x}", "bkua_{40x}", "cio{32}", "v1.0-{24x}-{146x}", "K{51}", "0x{64x}",
    "oauth:{30a}", "p8e-{32a}", "LTAI{20}", "AQVN{35b}", "access-production-{8x}-{4x}-{4x}-{4x}-{12x}", "live_{35x}",
    "pat.{22b}.{24x}.{20}", "API-{26A}", "sm_pat_{16}", "{40}", "{39s}/", "{52a}", "{40x}", "phx_{43}", "ddapi_{40}",
    "key_{48}", "tok_live_{36}", "Log in with ada and {9}!3", "uses {4w}-{4w}-{4w}-{2d} to unlock it",
)  # fmt: skip
_BENIGN = (
    "Order {3d}-{7d}-{7d} arrives on Monday.",
    "The tracking number is 1Z{16A}.",
    "Order number {16d}, paid by invoice.",
    "Invoice INV-2026-{6d} is overdue since 2026-03-{0}{1d}.",
    "My customer number is {10d}; please note it.",
    "Fixed in commit {40x}, released as v1.{1d}.{2d}.",
    "git cherry-pick {7x} {7x} and {8x}",
    "The image is sha256:{64x}.",
    'integrity "sha512-{86s}=="',
    "The run is {8x}-{4x}-4{3x}-a{3x}-{12x}.",
    "Session {32x} took 4 seconds.",
    "IBAN DE{2d} {4d} {4d} {4d} {4d} {2d} for the rent.",
    "IBAN GB{2d}NWBK{14d}",
    "Call me at +49 30 {8d} after six.",
    "Her number is (415) 555-{4d}, office 0{2d}/{7d}.",
    "Brand colours: #{6x}, #{6x} and rgba(12, {2d}, 200, 0.{1d}).",
    "![logo](data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA{300s})",
    "data:image/jpeg;base64,/9j/4AAQSkZJRgABAQ{240s}",
    "ISBN 978-3-16-{6d}-{1d}, second edition.",
    "The book is 978{10d}.",
    "Windows key XXXXX-{5A}-{5A}-{5A}-{5A} is on the sticker.",
    "Licence {4A}-{4A}-{4A}-{4A} for the editor.",
    "The laptop's serial is C02{9A}, the phone's IMEI {15d}.",
    "VIN WVWZZZ1JZ3W{6d}, first registered in 2014.",
    "MAC 3c:{2x}:{2x}:{2x}:{2x}:0f, host printer-{2d}.",
    "fe80::{4x}:{4x}:{4x}:{4x} answers pings.",
    "https://www.youtube.com/watch?v={11b}",
    "https://docs.google.com/document/d/1{43b}/edit",
    "https://example.org/articles/2026/how-we-moved-{5w}-to-{6w}-in-{2d}-days?utm_source=news",
    "pod web-{10a}-{5a} restarted {1d} times",
    "arn:aws:iam::{12d}:role/reader and ami-0{16x}",
    "i-0{16x} in subnet-0{16x}",
    "Tool call call_{24} returned nothing.",
    "Message msg_{24}, thread thread_{24}, run-{8x}-{4x}-{4x}-{4x}-{12x}",
    "Stripe customer cus_{14}, payment pi_{24}",
    "The user's Slack channel is C0{9A}, team T0{8A}.",
    "Flight LH{4d}, booking {6A}, seat {2d}C.",
    "Gene BRCA1 c.{4d}A>G, sample GSM{7d}.",
    "CAS {4d}-{2d}-{1d}, batch L{8A}",
    "doi:10.1000/xyz{5d}, arXiv:26{2d}.{5d}",
    "Lives at 51.{6d}, -0.{6d}, third floor.",
    "The file is report_final_v{1d}_{8d}_reviewed_by_{6w}.pdf",
    "CONSTANT_NAME_OF_THE_{7w}_SETTING = {4d}",
    "def test_that_{8w}_returns_{6w}_when_{7w}_is_empty(): ...",
    "The password must have {2d} characters and is changed every 90 days.",
    "I forgot my password again; the {6w} one.",
    "password: required, api_key: your-api-key-here",
    "Set API_KEY=<your key> and TOKEN=${{TOKEN}} in .env",
    "client_secret: os.environ['{6w}_SECRET'], password=getpass()",
    "max_tokens: {4d}, token_count = {5d}, tokens per day: {6d}",
    "The secret is patience, says {6w}.",
    "The key to success: {8w} every morning.",
    "My favourite card game is {6w}; I won {2d} times.",
    "She pays by credit card, ends in {4d}.",
    "postgresql://localhost:5432/{6w} and http://{6w}:8080/@ada",
    "postgresql://user:password@localhost/{6w}",
    "ssh://git@example.org:22/{6w}.git, git@example.org:{6w}/{6w}.git",
    "The bearer of the ring is {6w}, the bearer {8w} of news.",
    "Prefers the sk-SK and pt-BR locales, ticket SK-{5d}.",
    "Höchstgeschwindigkeitsbegrenzung{6w} ist ein Wort mit {2d} Buchstaben.",
    "ユーザーは東京に住んでいて、{2d}歳です。",
    "Chess: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 {1d}",
)


class Sample(NamedTuple):
    """A text, its format, and the random part of the secret that must not be left of it."""

    text: str
    kind: str
    secret: str


def filled(pattern: str, random: Random) -> str:
    """``pattern`` with random characters in the place of braces such as ``{36x}``; {Nl} ends with a check digit."""

    def part(found: re.Match[str]) -> str:
        size, name = int(found[1]), found[2]
        return "".join(random.choice(_ALPHABETS["d" if name == "l" else name]) for _ in range(size))

    made = re.sub(r"\{(\d+)([a-zA-Z]?)\}", part, pattern)
    if "l}" in pattern:
        digits = [int(one) for one in made if one.isdecimal()][:-1]
        doubled = [sum(divmod(2 * one, 10)) for one in digits[::-2]]
        made = made[:-1] + str(-(sum(doubled) + sum(digits[-2::-2])) % 10)
    return made


def known(seed: int = 1, count: int = 160) -> list[Sample]:
    """Secrets in formats that rules were written for: each trigger, and assignments, cards and connections."""
    data: dict[str, Any] = tomllib.loads((files("inference_core.memory") / "secrets.toml").read_text("utf-8"))
    random = Random(seed)
    found = [
        _placed(one["kind"], filled(one.get("example_before", ""), random) + trigger, one["example"], random)
        for one in data["credentials"]
        for trigger in one["triggers"]
    ]
    for kind, text, pattern in _OTHERS:
        secret = filled(pattern.replace("{0}", "1"), random)
        found.append(Sample(text.format(secret), kind, secret))
    return found[-count:]


def held_out(seed: int = 2, each: int = 4) -> list[Sample]:
    """Secrets in forms that no rule was written for; nobody looked at them while the rules were made."""
    random = Random(seed)
    return [_placed("held out", "", pattern, random) for pattern in _HELD_OUT for _ in range(each)]


def benign(seed: int = 3, count: int = 300) -> list[str]:
    """Harmless texts with numbers, hashes, codes and words that secrets have too."""
    random = Random(seed)
    return [filled(_BENIGN[at % len(_BENIGN)].replace("{0}", "1"), random) for at in range(count)]


def hostile(size: int = 100_000) -> Iterator[tuple[str, str]]:
    """Names and texts of ``size`` characters that hold what expressions begin with, without what they end with."""
    data: dict[str, Any] = tomllib.loads((files("inference_core.memory") / "secrets.toml").read_text("utf-8"))
    triggers = [trigger for one in data["credentials"] for trigger in one["triggers"]]
    words = [*data["assignments"]["keys"], *data["assignments"]["passwords"]]
    parts = {
        "all triggers": " ".join(triggers) + " ",
        "all triggers, joined": "".join(triggers),
        "all words, assigned": " ".join(f"{word}: a{'b' * 20}" for word in words) + " ",
        "words without values": "password:" * 20 + " secret = " * 10,
        "tokens that never end": "eyJ" + "a" * 4_000 + ".eyJ" + "b" * 4_000,
        "many token starts": "eyJ.eyJa.",
        "headers of keys": "-----BEGIN PRIVATE KEY-----",
        "connections": "://a:b" + "c" * 120 + " ",
        "colons": "://:" * 10,
        "digits": "4111 1111 1111 1112 4" + "1" * 40 + " ",
        "single digits": "1 2 3 4-5 6-",
        "underscores": "a_",
        "letters": "a",
        "hyphens": "a-" * 16 + "b" * 31 + "_",
        "signs": "_-.:/@+=~",
        "spaces": " ",
        "addresses": "a@" + "b." * 6,
        "base64": base64.b64encode(Random(4).randbytes(3_000)).decode(),
        "Chinese": "密码是密碼：",  # noqa: RUF001 - as it is written
    }
    for name, part in parts.items():
        yield name, (part * (size // len(part) + 1))[:size]


def _placed(kind: str, before: str, pattern: str, random: Random) -> Sample:
    """A secret in one of the places; what must not be left is its longest random part."""
    secret = before + filled(pattern, random)
    parts = re.split(r"[^A-Za-z0-9]+", secret.removeprefix(before))
    return Sample(random.choice(_PLACES).format(secret), kind, max(parts, key=len))
