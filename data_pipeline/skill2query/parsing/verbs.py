"""Phrases that say what a skill does, from a sentence, a heading or a list item: verb first, in the verb's base form."""

from __future__ import annotations

import re
from functools import lru_cache

from data_pipeline.phrases import DANGLING, VERBS, first_words, strip_lead_in

MIN_WORDS, MAX_WORDS = 2, 16
"""Of a capability."""

_MORE = """
accelerate access achieve acquire activate actuate administer advise aggregate agree alert animate annotate append
apply approximate articulate assemble assess assign attach attack attribute augment authenticate authorize autoscale
avoid backup bake bisect blend boost bootstrap brainstorm break bring broadcast browse bump bundle cache calculate
call cancel cast catch categorize centralize chain chart checkout cite clarify click clone close commit communicate
compensate compute configure confirm connect consolidate construct consume containerize contribute control convey copy
correct correlate count cover crack craft crop curate customize decode decompile decompose deduplicate define delegate
delete demonstrate denoise deny deobfuscate derive detail diff digest disable disassemble discuss dispatch display
distill distribute dive dockerize download drive dump duplicate edit elicit eliminate embed emit employ encode encrypt
enforce enhance enrich enumerate escalate establish evolve examine exchange expand exploit expose extend externalize
facilitate fetch finalize finetune fingerprint flag flatten focus follow forge fork foster frame fuzz gather gauge
govern grade grow harden harvest highlight hire host hunt illustrate impersonate impute incorporate increase infer
ingest initialize inject input insert interact intercept interpolate interpret interview introduce invoke isolate
iterate join judge launch learn leverage lint listen load localize locate lock look loop lower make mark match
maximize measure memoize mentor minify minimize mint mix mock moderate modernize modify mount move narrate navigate
negotiate notarize notify obfuscate obtain onboard open operate orchestrate order outreach overlay override oversee
package paginate paint parallelize parameterize partition patch pay pentest perform persist personalize phish pick pin
pivot play populate port post predict present preserve preview print prioritize probe promote propose protect
prototype prove provision prune pull purge push qualify quantify quantize raise rearchitect reason rebase rebuild
receive recommend reconstruct redact redeploy redesign refine reflect refresh register regress release remediate
remember remind reorganize repeat reproduce rescue research reset respond restart restore restructure resume retain
retrieve retry return reuse reverse reverse-engineer revise revoke right-size rightsize rotate route sample sandbox
scaffold scale scope screen seal seek segment serialize serve share ship show shrink sign simplify simulate sketch
slice sniff solve spawn specify spin spoof spot standardize start steer stop store strengthen stress study submit
subscribe substitute supervise survey swap switch synchronize synthesize tackle tag tailor take teach thread throttle
toggle tokenize transfer transition transpile transport traverse triage trigger trim troubleshoot tweak type
understand undo unify uninstall unlock unpack upload upsert use utilize vectorize version view walk warn weigh wire
work wrap zip
"""
KNOWN = VERBS | frozenset(_MORE.split())

_EMPTY_LIST = """
achieve address ask cover employ enable ensure focus follow get help include invoke know learn leverage load look need
offer own provide question read remember request see seek show start stop support take understand use utilize work
"""
EMPTY = frozenset(_EMPTY_LIST.split())
"""Verbs that no capability begins with: what they name is about the document, not about the user's work."""
_NOUN_TOO_LIST = """
access address animate answer attack author backup balance batch benchmark boost break bundle cache call cast catch
chain change chart chat check clone close cluster comment commit complete contact control coordinate copy correct cost
count cover cut design diff digest document draft dump embed estimate exchange exploit file filter flag focus forecast
fork form format frame fuzz group guide host index input interview issue join judge label lead lint list live lock log
look loop lower map mark market master match mean measure message mint mix mock model monitor mount name network offer
open order own package patch perfect pin pipeline place plan play plot port position post practice present press
preview price print process produce profile program project prompt query question queue rank rate reach reason record
release repair replay report request research reset resume retry return reuse review rotate route sample scaffold
scale scan schedule scope score screen script search secure segment separate set share ship show sign sketch slice
sort source split spot stage start state stop store stream stress structure study style summary support survey swap
switch sync tag target test thread tool trace track train transfer transition transport trigger trim turn type update
upgrade use version view visit watch work zip
"""
NOUN_TOO = frozenset(_NOUN_TOO_LIST.split())
"""Verbs that are as often a noun or an adjective: a heading ``Query optimization`` is no instruction to query."""
_NOMINAL = re.compile(r"(?:tion|sion|ment|ness|ance|ence|ity|ing|ism|ology|sis|age|ure|ship|ery|val|isons?|back)s?$")
_HEADS_LIST = """
aliases architecture basics best case cases categories check checklist checks code command commands comparison
comparisons components concepts config configuration considerations controls cost costs coverage criteria data
decisions design details endpoint environment errors examples features file files filters flags flow format formats
framework frameworks gates guide guidelines hierarchy info information issues items layer layers levels library limits
list logic loop matrix mechanism mechanisms method methods metrics mode model models modes name notes operator
operators options order overview page parameters path paths pattern patterns performance phase phases philosophy
pipeline pitfalls plan points policy practices principle principles priority problems procedure procedures process
properties questions reference requirements response results rubric rule rules scenario scenarios schema section
sections server setup size skill skills space stack stage stages standards state status step steps storage strategies
strategy structure style suite summary syntax system systems table target techniques template templates theory
thresholds time tips tool tools topics tree trees types variables version workflow workflows
"""
_HEADS = frozenset(_HEADS_LIST.split())
_OBJECTS_LIST = """
code components data errors features file files issues items layer layers list page pages requirements table tables
topics types variables
"""
_OBJECTS = frozenset(_OBJECTS_LIST.split())
_DETERMINERS_LIST = """
a across against all an any between both by custom each every existing for from into it its many multiple my new one
only our several some that the their them these this those three to two with your
"""
_DETERMINERS = frozenset(_DETERMINERS_LIST.split())
_FUNCTION_LIST = """
again also always are be been but etc first had has have if is it more most not once only so than that then was were which who
whose you
"""
_FUNCTION = DANGLING | frozenset(_FUNCTION_LIST.split())
_GUIDANCE = (
    "guidance|support|tools?|techniques|methods|workflows?|instructions|capabilities|patterns|assistance|help|scripts?|"
    "templates?|best practices|frameworks?|knowledge|expertise"
)
_LEAD_INS = (
    r"(?:always |proactively |also )?(?:use|invoke|trigger|activate|apply|load)"
    r"(?: (?:it|this|the|me|this skill|the skill|this agent|this command))?(?: skill)?(?: proactively| only| also)?"
    r"(?: (?:when(?:ever)?|for|to|if|in order to|as))(?: (?:you|the user|users?)(?= ))?",
    r"(?:this|the) (?:skill|agent|tool|guide|command|workflow|document)(?: (?:should|can|must|may) be| is| also)?"
    r"(?: (?:used|invoked|applied|triggered))?(?: (?:when(?:ever)?|for|to|if|covers|helps(?: you)?|enables|provides|lets you))?",
    r"when(?:ever)?|if|(?:the |a |an )?(?:users?|agents?|claude|you|developers?|someone|team|they)"
    r"(?: (?:is|are|has|have))?(?: also)?|is|are",
    r"(?:explicitly )?asks?(?: (?:you|claude|about how))?(?: (?:to|for|about|how to))?|wants?(?: (?:you )?to)?",
    r"needs?(?: (?:help|you))?(?: to)?|requests?|requires?|would like(?: to)?",
    r"helps?(?: (?:you|users?|with|teams?|developers?|in|the user))?(?: to)?",
    r"asking (?:to|for|about)|looking (?:to|for)|trying to|planning to|needing to|wanting to",
    r"tasks? (?:involving|like|such as|requires?)|(?:enables?|allows?|lets|helps) (?:[\w-]+ ){1,3}to",
    rf"(?:provides?|offers?|includes?) (?:[\w-]+ ){{0,4}}(?:{_GUIDANCE}) (?:for|on|to|in|with)",
    r"(?:how|ability|able) to|and|or|for|to|by|then|also|please|first|finally|next|now",
    r"(?:automatical|quick|easi|systematical|effective|efficient|professional|safe|programmatical)ly",
)
LEAD_IN = re.compile(rf"^(?:{'|'.join(_LEAD_INS)})\b[:,]?\s*", re.IGNORECASE)
_JOINS = frozenset({"and", "or", "&", "then", "and/or"})
_INNER = re.compile(r"\s(?:for|to|that|which|on how to|in)\s", re.IGNORECASE)
_NUMBER = re.compile(
    r"^(?:(?:step|phase|stage|workflow|task|part|use case|scenario|pattern|method|option|mode|example|recipe|tip|rule|"
    r"feature|capability|command|operation|action|level|area|module)\s*(?:\d+|[a-z](?=[:.)]))(?:\.\d+)*|"
    r"\(?\d+(?:\.\d+)*[.):]?|[a-z][.)])\s*[:.)—–-]*\s*(?=\S)",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"\s?\([^()]{0,300}\)?")
_CODE = re.compile(
    r"[{}=;$[\]\"“”]|\s/\s|\bvs\.?$|[\\|]|\w\(|::|->|=>|--\w|\w/\w+/|^\W*[./~]|\.\w{1,4}\b.*\.\w{1,4}\b|_\w+_|\bTODO\b"
)
_STOP = re.compile(
    r"[.:!?;]\s|[.:!?;]$|\s[-–—→]+\s|\s?[–—→]|\n|\s\+\s?|,? (?:which|where|so that|because|including|e\.g\.|i\.e\.|etc|unless|"
    r"but|while|whether|based on whether|if|when|whenever|as well as)\b.*"
)


@lru_cache(maxsize=8192)
def verb_form(word: str) -> tuple[str, str]:
    """The base form of a verb and the form that ``word`` has: ``base``, ``s`` or ``ing``; two empty strings for other words."""
    if word in KNOWN:
        return word, "base"
    if word.endswith("ing") and len(word) > 4:
        stem = word[:-3]
        for base in (stem, f"{stem}e", stem[:-1] if stem[-1:] == stem[-2:-1] else ""):
            if base in KNOWN:
                return base, "ing"
    if word.endswith("s") and len(word) > 3:
        for base in (
            word[:-1],
            word[:-2] if word.endswith("es") else "",
            f"{word[:-3]}y" if word.endswith("ies") else "",
        ):
            if base in KNOWN:
                return base, "s"
    prefix, _, rest = word.partition("-")
    if (
        prefix
        in ("re", "auto", "cross", "fine", "pre", "co", "live", "bulk", "batch", "reverse", "right", "fact", "double")
        and rest
    ):
        base, form = verb_form(rest)
        return (f"{prefix}-{base}", form) if base else ("", "")
    return "", ""


def capability_phrases(text: str, strict: bool = False) -> list[str]:
    """The capabilities that one plain sentence, heading or list item names, in its order; often none.

    ``strict`` is for headings, where ``Query optimization`` and ``Testing strategies`` stand for a topic. Coordinated clauses
    become phrases of their own where each has its object: ``reviews plans and writes reports`` gives two, ``create and edit
    maps`` one.
    """
    if not text.isprintable():
        return []
    text = _NUMBER.sub("", text, count=1)
    text = strip_lead_in(" ".join(_ASIDE.sub("", text).split()), LEAD_IN)
    text = _STOP.split(text, maxsplit=1)[0].strip(" .,;:!?-–—→'\"/)(")
    words = text.split()
    if not words or _CODE.search(text):
        return []
    return [phrase for clause in _clauses(words) if (phrase := _phrase(clause, strict))]


def inner_phrases(text: str) -> list[str]:
    """The same for a noun phrase that says what it is for: ``Toolkit for testing web apps`` gives ``test web apps``."""
    for match in _INNER.finditer(text[:200]):
        word = text[match.end() :].split(" ", 1)[0].lower().strip(",.")
        base, form = verb_form(word)
        wanted = {"for": "ing", "in": "ing", "to": "base", "on how to": "base"}.get(match.group().strip().lower(), "s")
        if base and form == wanted and base not in EMPTY:
            return capability_phrases(text[match.end() :])
    return []


def _clauses(words: list[str]) -> list[list[str]]:
    """Split where a new clause begins with a verb in the form of the first one, and bring those verbs to their base form."""
    first, form = verb_form(words[0].lower().strip(","))
    if not first or words[0].endswith(":"):
        return []
    verbs = {0: first}
    for i in range(1, len(words)):
        before = words[i - 2] if words[i - 1].endswith("ly") and i > 1 else words[i - 1]
        if before.endswith(",") or before.lower() in _JOINS:
            base, this = verb_form(words[i].lower().strip(","))
            if base and this == form and not (form == "base" and base in NOUN_TOO and _before_noun(words, i)):
                verbs[i] = base
    # Verbs at the end that have no object belong to a list of nouns: "tables with paging, sorting, or filtering".
    while len(verbs) > 1 and _is_listed(words[max(verbs) + 1 :], form):
        del verbs[max(verbs)]
    words = [_like(word, verbs[i]) if i in verbs else word for i, word in enumerate(words)]
    starts = [i for i in verbs if i == 0 or _has_object(_between(words, verbs, i), form)]
    return [words[i:j] for i, j in zip(starts, [*starts[1:], len(words)], strict=True)]


def _between(words: list[str], verbs: dict[int, str], position: int) -> list[str]:
    """What stands between the verb at ``position`` and the one before it."""
    return words[max(i for i in verbs if i < position) + 1 : position]


def _has_object(words: list[str], form: str) -> bool:
    """Whether anything but conjunctions, adverbs, small words and listed verbs of that form stands there."""
    for word in words:
        plain = word.lower().strip(",")
        listed = word.endswith(",") and verb_form(plain)[1] == form
        if not listed and plain not in _JOINS and plain not in _FUNCTION and not word.endswith("ly"):
            return True
    return False


def _is_listed(rest: list[str], form: str) -> bool:
    """Whether what follows a verb is no object: nothing of substance, or only "or" and another verb."""
    joined = len(rest) == 2 and rest[0].lower() in _JOINS and bool(verb_form(rest[1].lower())[0])
    return joined or not _has_object(rest, form)


def _before_noun(words: list[str], i: int) -> bool:
    """Whether what follows a word that is verb and noun speaks for the noun: nothing, another join, or a nominal."""
    following = words[i + 1].lower() if i + 1 < len(words) else ""
    return not following or following in _JOINS or words[i].endswith(",") or bool(_NOMINAL.search(following.strip(",")))


def _like(word: str, base: str) -> str:
    return base + ("," if word.endswith(",") else "")


def _phrase(words: list[str], strict: bool) -> str:
    while words and (words[-1].lower().strip(",") in _JOINS or (len(words) > 2 and words[-1].endswith("ly"))):
        words = words[:-1]
    text = first_words(" ".join(words), 200)
    words = text.split()
    if len(words) > MAX_WORDS:
        cut = max((i for i in range(4, MAX_WORDS) if words[i - 1].endswith(",")), default=0)
        text = first_words(text, cut or MAX_WORDS)
        words = text.split()
    if len(words) < MIN_WORDS:
        return ""
    verb, second = words[0].strip(","), words[1].lower().strip(",")
    if (
        verb in EMPTY
        or second in ("is", "are", "of", "has", "was", "it", "them", "this", "these", "also", "vs")
        or (second == "for" and verb in NOUN_TOO)
    ):
        return ""
    if words[0].endswith(",") and second not in _JOINS and not verb_form(second)[0]:  # the first of a list of nouns
        return ""
    objects = [w.lower().strip(",") for w in words[1:] if len(w) > 2 and not w.endswith("ly")]
    if all(w in _FUNCTION or w in _JOINS for w in objects) or (
        second in _JOINS and all(verb_form(w)[1] == "base" for w in objects[1:])
    ):
        return ""
    if verb in NOUN_TOO and second not in _DETERMINERS and _is_compound(words, strict):
        return ""
    if strict and len(words) <= 3 and second not in _DETERMINERS:
        last = words[-1].lower()
        if (
            last in _HEADS - _OBJECTS
            or second in _HEADS - _OBJECTS
            or (verb in NOUN_TOO and verb_form(last)[0] in NOUN_TOO)
        ):
            return ""
    return "" if sum(w.isupper() and len(w) > 4 for w in words) > 1 else text


def _is_compound(words: list[str], strict: bool) -> bool:
    """Whether a word that is verb and noun is the noun: ``query optimization``, ``test coverage report``."""
    second, last = words[1].lower().strip(","), words[-1].lower()
    if _NOMINAL.search(second) or second in _HEADS - _OBJECTS or second in _JOINS:
        return True
    if len(words) <= 3 and _NOMINAL.search(last) and not last.endswith("s"):
        return True
    if len(words) == 2 and second in NOUN_TOO:
        return True
    return strict and len(words) == 2 and not second.endswith("s")
