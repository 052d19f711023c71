"""Candidate values of a slot in order of priority (3.3.3): what the document gives, then what the name and type suggest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from data_pipeline.skill2query.grammar import word_set
from data_pipeline.skill2query.graph import Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.wording import name_words, pick, spoken

OWN = "my "
"""How a value begins that names what the person has at hand instead of writing it out: ``my access token``."""
MAX_VALUE_CHARS = 60

_QUOTED = re.compile(r"[\"'`“]([^\"'`“”\n]{1,60})[\"'`”]")
_EXAMPLE = re.compile(r"\b(?:e\.g\.|for example|for instance|such as|i\.e\.|like)[,:]?\s+([^.;()\n]{1,80})", re.I)
_NO_VALUE = re.compile(
    r"(?i)^(?:none|null|nil|undefined|nan|n/?a|-+|\.+|…|required|optional|varies|auto|any|string|integer|number|boolean|object|array|str|int|float|bool|list|dict|tuple|bytes|void|self|cls|"
    r"true/false|value|default|x+|(?:your|my)[-_. ].*|-.*[a-z].*|.*(?:your_|_here|process\.env|\.\.\.).*)$"
)
_CODE = re.compile(r"[{}<>\[\]|*;=$`\\\n\t#]|\(\)|=>|::|\)$|^\w+\(")
_EXAMPLE_FOLDER = re.compile(r"^/?path/to/", re.I)
_ATTRIBUTE = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")  # user.email: an expression of the example's code
_FILE_OR_HOST = re.compile(r"\.(?:com|org|net|io|dev|app|ai|[a-z]{2,4}|parquet|ipynb|fasta)$")
_SWITCH_WORDS = word_set("include enable use with show allow add no disable skip exclude without ignore omit")
_SECRET = word_set("key token secret password passwd credential credentials pat apikey auth jwt passphrase")
_DIRECTORY = word_set("dir directory folder root workspace")
_EXTENSIONS = (
    ("csv", "csv"), ("xlsx", "xlsx"), ("excel", "xlsx"), ("spreadsheet", "xlsx"), ("pdf", "pdf"), ("docx", "docx"),
    ("word", "docx"), ("pptx", "pptx"), ("slide", "pptx"), ("presentation", "pptx"), ("image", "png"), ("photo", "jpg"),
    ("screenshot", "png"),
    ("video", "mp4"), ("audio", "mp3"), ("subtitle", "srt"), ("transcript", "txt"), ("json", "json"), ("yaml", "yaml"),
    ("config", "yaml"), ("schema", "json"), ("log", "log"), ("sql", "sql"), ("database", "db"), ("html", "html"),
    ("markdown", "md"),
    ("notebook", "ipynb"), ("script", "py"), ("fasta", "fasta"), ("vcf", "vcf"), ("parquet", "parquet"), ("svg", "svg"),
)  # fmt: skip
_STEMS = ("report", "orders", "customers", "meeting", "survey", "invoices", "launch", "q3", "research", "team")
_RESULTS = ("result", "summary", "final", "output", "export")
_TARGETS = word_set("output out dest destination target save export")
_FOLDERS = ("src", "data", "docs", "project", "assets", "build")
_PAGES = ("blog", "docs", "products", "pricing", "about", "news")
_DATES = ("2025-03-01", "2025-06-15", "2025-01-31", "2024-11-20", "2025-09-08")

_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("topic subject theme", ("remote work", "electric cars", "sleep and memory", "coffee farming", "urban gardening")),
    ("query keyword keywords search term q", ("solar panels", "late deliveries", "onboarding", "refund policy", "heat pumps")),
    ("language lang locale", ("German", "Spanish", "French", "Japanese", "Portuguese")),
    ("country", ("Germany", "Brazil", "Japan", "Kenya", "Canada")),
    ("city location place destination address", ("Berlin", "Lisbon", "Toronto", "Nairobi", "Osaka")),
    ("region", ("eu-west-1", "us-east-1", "ap-southeast-2")),
    ("email recipient", ("ana@example.com", "team@example.com", "sales@example.com")),
    ("username user owner author assignee", ("ana", "jonas", "priya", "mwangi")),
    ("title headline", ("Getting started", "Quarterly review", "What we learned", "Release notes")),
    ("message text body comment note", ("see you at noon", "the build is ready", "thanks for your help")),
    ("project repo repository app application service", ("checkout", "billing", "storefront", "inventory")),
    ("branch", ("main", "develop", "release")),
    ("table collection", ("orders", "customers", "payments")),
    ("database db", ("shop", "analytics", "staging")),
    ("company organization org brand client customer", ("Northwind", "Contoso", "Fabrikam")),
    ("symbol ticker", ("AAPL", "MSFT", "NVDA")),
    ("currency", ("EUR", "USD", "JPY")),
    ("domain host hostname", ("example.com", "shop.example.com")),
    ("color colour", ("dark blue", "orange", "teal")),
    ("tag label category", ("finance", "travel", "health")),
    ("industry sector", ("retail", "healthcare", "logistics")),
    ("audience persona", ("first-time founders", "nurses", "high school teachers")),
    ("framework", ("React", "Django", "Vue")),
    ("environment env stage", ("staging", "production")),
    ("gene", ("TP53", "BRCA1", "EGFR")),
    ("protein", ("insulin", "hemoglobin")),
    ("compound drug molecule", ("aspirin", "ibuprofen", "caffeine")),
    ("disease condition", ("asthma", "type 2 diabetes")),
    ("timezone tz", ("Europe/Berlin", "UTC")),
    ("version", ("2.1", "1.4.0", "3.0")),
    ("style tone", ("friendly", "formal", "playful")),
    ("goal objective", ("more sign-ups", "fewer support tickets")),
)  # fmt: skip
_OWN_NAMES = {"to": "recipient", "from": "sender", "x": "input", "y": "input", "val": "value", "arg": "input"}
_BY_WORD = {word: values for words, values in _WORDS for word in words.split()}

_NUMBERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("port", ("8080", "3000", "5432")),
    ("timeout duration interval delay seconds ttl wait", ("30", "60", "10")),
    ("minutes", ("15", "45", "90")),
    ("days", ("7", "30", "90")),
    ("year", ("2024", "2025", "2023")),
    ("month", ("3", "11", "6")),
    ("width", ("1280", "800", "1920")),
    ("height", ("720", "600", "1080")),
    ("page offset", ("2", "1", "3")),
    ("dpi", ("300", "150")),
    ("quality", ("80", "90", "75")),
    ("temperature", ("0.7", "0.2", "1")),
    ("threshold confidence probability alpha rate ratio fraction", ("0.05", "0.8", "0.5")),
    ("price amount budget cost", ("250", "49.99", "1200")),
    ("latitude lat", ("52.5", "40.7")),
    ("longitude lon lng", ("13.4", "-74.0")),
    ("age", ("34", "52")),
    ("retries attempts", ("3", "5")),
    ("epochs iterations steps", ("3", "10", "100")),
    ("seed", ("42", "7")),
    ("size batch", ("32", "16", "64")),
    ("limit max count total results rows items top k n num number", ("10", "5", "20", "50")),
)
_NUMBER_BY_WORD = {word: values for words, values in _NUMBERS for word in words.split()}
_GUESSES: tuple[tuple[str, ParameterType], ...] = (
    ("url link website endpoint uri", ParameterType.URL),
    ("file path filename document folder directory dir", ParameterType.PATH),
    ("date since until deadline", ParameterType.DATE),
    (" ".join(words for words, _ in _NUMBERS), ParameterType.NUMBER),
)


def guessed_parameter(name: str) -> Parameter:
    """What a slot's name alone suggests: for the methods of A.1 that see no parameter schema."""
    words = set(name_words(name))
    kind = next((kind for names, kind in _GUESSES if words & set(names.split())), ParameterType.STRING)
    return Parameter("", name, kind)


def candidates(parameter: Parameter, graph: SkillGraph, seed: int = 0) -> list[str]:
    """Values for a slot, best first, each once.

    Priority: what usage examples set, enumerated values, the default, the ends and middle of the range, the parameter's own
    examples, values that its description quotes, and at last :func:`fallbacks`, where nothing else is there. A placeholder, a
    piece of code or a value longer than 60 characters is no candidate.
    """
    found = list(dict.fromkeys(value for raw in _documented(parameter, graph) if (value := usable(raw, parameter))))
    if found and parameter.type != ParameterType.BOOLEAN:
        return found
    return list(dict.fromkeys(fallbacks(parameter, graph, seed)))


def documented(parameter: Parameter, graph: SkillGraph) -> bool:
    """Whether the document itself gives a value that a person would write."""
    return any(usable(raw, parameter) for raw in _documented(parameter, graph))


def usable(raw: str, parameter: Parameter) -> str:
    """A documented value as a person would write it; empty where nobody would."""
    value = _EXAMPLE_FOLDER.sub("", raw.strip().strip("`\"'“”").strip())
    if parameter.type == ParameterType.ARRAY:
        value = ", ".join(array_items(raw))
    if parameter.type == ParameterType.STRING and _ATTRIBUTE.fullmatch(value) and not _FILE_OR_HOST.search(value):
        return ""
    if not value or len(value) > MAX_VALUE_CHARS or _NO_VALUE.match(value) or _CODE.search(value):
        return ""
    secret = bool(_SECRET & set(name_words(parameter.name)))
    return "" if secret or parameter.type == ParameterType.OBJECT else value


def array_items(raw: str) -> list[str]:
    """The items of a JSON list or of a list with commas."""
    try:
        value = json.loads(raw)
    except ValueError:
        value = raw.strip("[]() ").split(",")
    items = value if isinstance(value, list) else [value]
    return [text for item in items if not isinstance(item, dict | list) and (text := str(item).strip(" \"'`"))]


def _documented(parameter: Parameter, graph: SkillGraph) -> Iterator[str]:
    yield from graph.example_values(parameter)
    yield from parameter.values
    if parameter.default is not None:
        yield parameter.default
    yield from _range_values(parameter)
    yield from parameter.examples
    yield from _mentioned(parameter)


def _range_values(parameter: Parameter) -> Iterator[str]:
    low, high = parameter.minimum, parameter.maximum
    if low is None and high is None:
        return
    whole = parameter.type == ParameterType.INTEGER
    if low is not None and high is not None:
        middle = (low + high) / 2
        ends: Sequence[float] = (low, int(middle) if whole else middle, high)
    else:
        ends = (low if low is not None else high,)  # type: ignore[assignment]
    yield from (number_text(end) for end in ends)


def number_text(value: float) -> str:
    """``2`` rather than ``2.0``."""
    return str(int(value)) if value == int(value) else f"{value:.6g}"


def _mentioned(parameter: Parameter) -> Iterator[str]:
    if parameter.type in (ParameterType.STRING, ParameterType.PATH, ParameterType.URL, ParameterType.ENUM):
        yield from (match.strip() for match in _QUOTED.findall(parameter.description))
        for listed in _EXAMPLE.findall(parameter.description):
            yield from (part.strip() for part in re.split(r",| or | and ", listed) if 0 < len(part.split()) <= 3)


def fallbacks(parameter: Parameter, graph: SkillGraph, seed: int = 0) -> list[str]:
    """Values by type, name and unit for a parameter of which the document gives none; varied by skill and seed."""
    words = name_words(parameter.name)
    kind = parameter.type
    chosen: list[str]
    own = f"{OWN}{_OWN_NAMES.get(words[-1] if words else '', spoken(words))}"
    if kind in (ParameterType.OBJECT, ParameterType.ARRAY, ParameterType.ENUM) or _SECRET & set(words):
        return [own]
    if kind == ParameterType.BOOLEAN:
        # A person asks for what is not the case anyhow: a plain flag is switched on; "without images" is a wish, too.
        return ["true", "false"] if words and words[0] in _SWITCH_WORDS else ["true"]
    if kind in (ParameterType.INTEGER, ParameterType.NUMBER):
        chosen = _numbers(words, parameter)
    elif kind == ParameterType.DATE:
        chosen = [*_DATES]
    elif kind == ParameterType.URL:
        chosen = _urls(words)
    elif kind == ParameterType.PATH:
        chosen = _paths(words, parameter, graph)
    else:
        chosen = next((list(_BY_WORD[word]) for word in reversed(words) if word in _BY_WORD), [own])
    start = pick(len(chosen), graph.skill_id, parameter.name, seed)
    return chosen[start:] + chosen[:start]


def _numbers(words: Sequence[str], parameter: Parameter) -> list[str]:
    by_name: Iterable[str] = next(
        (_NUMBER_BY_WORD[word] for word in reversed(words) if word in _NUMBER_BY_WORD), ("5", "3", "12")
    )
    if parameter.type == ParameterType.INTEGER:
        by_name = [value for value in by_name if "." not in value] or ["5", "3", "12"]
    return list(by_name)


def _urls(words: Sequence[str]) -> list[str]:
    named = set(words)
    if named & {"api", "endpoint", "base", "webhook", "callback"}:
        return ["https://api.example.com/v1", "https://api.example.com/orders"]
    if named & {"image", "photo", "avatar", "logo"}:
        return ["https://example.com/photo.png", "https://example.com/logo.png"]
    if named & {"video"}:
        return ["https://example.com/talk.mp4", "https://example.com/demo.mp4"]
    return [f"https://example.com/{page}" for page in _PAGES]


def _paths(words: Sequence[str], parameter: Parameter, graph: SkillGraph) -> list[str]:
    if _DIRECTORY & set(words):
        return list(_FOLDERS)
    for text in (" ".join(words), parameter.description.lower(), f"{graph.name} {graph.description}".lower()):
        extension = next((end for word, end in _EXTENSIONS if re.search(rf"\b{word}", text)), "")
        if extension:
            break
    stems = _RESULTS if _TARGETS & set(words) else _STEMS
    return [f"{stem}.{extension or 'txt'}" for stem in stems]
