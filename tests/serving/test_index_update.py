"""Updating: what was added, changed and removed, only that encoded, and nothing lost by accident."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.ingest import ingest
from models.encoder import SentenceTransformerEncoder
from serving import build_index, update_index
from serving.index import ModelMismatchError, open_index
from serving.index_plan import plan_update, read_library
from serving.index_update import IndexUpdater, RemovalRefusedError, Updated
from serving.versions import IndexBusyError, IndexNotFoundError, current_version, list_versions, writing

BODY = "Read the table, find the rows that are wrong, and write a report of them for the people who keep it. " * 2


def write_skill(library: Path, name: str, description: str = "Checks tables of figures.", body: str = BODY) -> Path:
    path = library / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: {description}\n---\n{body}", encoding="utf-8")
    return path


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder of six skills, a to f."""
    for name in "abcdef":
        write_skill(tmp_path / "skills", name)
    return tmp_path / "skills"


@pytest.fixture
def index(library: Path, tmp_path: Path) -> Path:
    """A BM25 index of ``library``."""
    build_index(tmp_path / "index", read_library([library]).skills, "bm25")
    return tmp_path / "index"


def test_what_was_added_changed_and_removed_is_named_and_done(library, index):
    write_skill(library, "g")
    write_skill(library, "b", description="Another sentence.")
    shutil.rmtree(library / "d")
    updated = update_index(index, [library])
    assert (updated.plan.added, updated.plan.changed, updated.plan.removed) == (["g"], ["b"], ["d"])
    assert updated.built is not None
    opened = open_index(index)
    assert opened.info.version == updated.built.info.version
    assert list(opened.skills) == list(read_library([library]).skills)
    assert opened.skills.get("b").description == "Another sentence."
    assert opened.info.source == [str(library)]


def test_nothing_to_do_writes_nothing(library, index):
    before = list_versions(index)
    os.utime(library / "a" / "SKILL.md")
    updated = update_index(index, [library])
    assert updated.plan.empty
    assert updated.built is None
    assert list_versions(index) == before


def test_an_index_of_an_ingested_corpus_follows_the_same_folder(library, tmp_path):
    ingest([str(library)], tmp_path / "corpus.jsonl", progress=False)
    build_index(tmp_path / "index", tmp_path / "corpus.jsonl", "bm25")
    assert update_index(tmp_path / "index", [library]).plan.empty


def test_a_dry_run_writes_nothing(library, index):
    write_skill(library, "g")
    before = sorted(index.rglob("*"))
    updated = update_index(index, [library], dry_run=True)
    assert (updated.plan.added, updated.built) == (["g"], None)
    assert sorted(index.rglob("*")) == before


def test_only_new_texts_are_encoded(library, encoder_folder, tmp_path, monkeypatch):
    build_index(tmp_path / "index", read_library([library]).skills, encoder_folder, cache_dir=tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    seen: list[str] = []
    plain = SentenceTransformerEncoder.encode_documents

    def counting(self, documents, *args, **kwargs):
        seen.extend(documents)
        return plain(self, documents, *args, **kwargs)

    monkeypatch.setattr(SentenceTransformerEncoder, "encode_documents", counting)
    write_skill(library, "b", description="Another sentence.")
    shutil.rmtree(library / "a")
    updated = update_index(tmp_path / "index", [library], cache_dir=tmp_path / "cache")
    assert updated.built is not None
    assert [text.split(" | ")[:2] for text in seen] == [["b", "Another sentence."]]
    assert (updated.built.encoded, updated.built.reused) == (1, 4)


def test_settings_of_the_build_stay(library, encoder_folder, encoder_cache, tmp_path):
    skills = read_library([library]).skills
    options = {"kind": "hnsw", "fusion_weight": 0.3, "max_length": 40, "reranker": "owner/reranker"}
    build_index(tmp_path / "index", skills, encoder_folder, cache_dir=encoder_cache, **options)
    write_skill(library, "g")
    updated = update_index(tmp_path / "index", [library], cache_dir=encoder_cache)
    assert updated.built is not None
    info = updated.built.info
    assert (info.kind, info.fusion_weight, info.reranker) == ("hnsw", 0.3, "owner/reranker")
    assert info.encoder_options == {"max_length": 40}
    assert info.model == str(encoder_folder)


def test_a_model_that_changed_is_refused_and_the_index_stays(library, encoder_folder, encoder_cache, tmp_path):
    model = Path(shutil.copytree(encoder_folder, tmp_path / "model"))
    build_index(tmp_path / "index", read_library([library]).skills, model, cache_dir=encoder_cache)
    before = current_version(tmp_path / "index")
    shutil.rmtree(model)
    write_skill(library, "g")
    with pytest.raises(ModelMismatchError, match="cannot be found"):
        update_index(tmp_path / "index", [library])
    assert current_version(tmp_path / "index") == before


# -- removals -------------------------------------------------------------------------------------------------------------


def test_more_than_half_is_removed_only_when_told_to(library, index):
    for name in "abcd":
        shutil.rmtree(library / name)
    with pytest.raises(RemovalRefusedError, match=r"4 of 6 skills are not in .*skills any more, 'a' among them"):
        update_index(index, [library])
    assert len(open_index(index).skills) == 6
    assert update_index(index, [library], allow_removals=True).plan.removed == ["a", "b", "c", "d"]
    assert open_index(index).skills.ids == ["e", "f"]


def test_half_may_be_removed(library, index):
    for name in "abc":
        shutil.rmtree(library / name)
    assert update_index(index, [library]).plan.removed == ["a", "b", "c"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"---\nname: [\n---\n", b"---\nname: b\n---\ntoo short"])
def test_a_skill_that_cannot_be_used_just_now_stays_as_it_is_indexed(library, index, content):
    (library / "b" / "SKILL.md").write_bytes(content)
    write_skill(library, "g")
    plan = update_index(index, [library]).plan
    assert [record.skill_id for record in plan.broken] == ["b"]
    assert (plan.added, plan.changed, plan.removed) == (["g"], [], [])
    assert open_index(index).skills.get("b").body.startswith("Read the table")
    write_skill(library, "b", description="Mended.")
    assert update_index(index, [library]).plan.changed == ["b"]


def test_a_new_skill_that_cannot_be_used_is_counted(library, index):
    write_skill(library, "g", body="short")
    plan = update_index(index, [library]).plan
    assert plan.dropped == {"too_short": 1}
    assert plan.empty


def test_a_library_that_is_gone_removes_nothing(library, index):
    shutil.rmtree(library)
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        update_index(index, [library], allow_removals=True)
    library.mkdir()
    with pytest.raises(FileNotFoundError, match=r"no SKILL\.md"):
        update_index(index, [library], allow_removals=True)
    write_skill(library, "a", body="short")
    with pytest.raises(ValueError, match=r"no usable skill in .*too_short: 1"):
        update_index(index, [library], allow_removals=True)


# -- corpus files and pseudo-queries --------------------------------------------------------------------------------------


def test_a_corpus_file_is_taken_as_it_stands(index, tmp_path):
    skills = [*list(open_index(index).skills)[:5], Skill("short", "short", "s", "")]
    SkillCorpus(skills).to_jsonl(tmp_path / "corpus.jsonl")
    plan = update_index(index, corpus=tmp_path / "corpus.jsonl").plan
    assert (plan.added, plan.removed) == (["short"], ["f"])


def test_index_text_outlives_an_update_from_the_folder(library, tmp_path):
    skills = read_library([library]).skills
    augmented = SkillCorpus(
        Skill(s.skill_id, s.name, s.description, s.body, s.metadata | {"index_text": f"zebra {s.name}"}) for s in skills
    )
    build_index(tmp_path / "index", augmented, "bm25")
    assert update_index(tmp_path / "index", [library]).plan.empty
    write_skill(library, "b", description="Another sentence.")
    plan = update_index(tmp_path / "index", [library]).plan
    assert (plan.changed, plan.outdated) == (["b"], ["b"])
    found = open_index(tmp_path / "index").bm25.search(["zebra"], 10, matched_only=True).ids[0]
    assert sorted(found) == ["a", "c", "d", "e", "f"]


def test_a_corpus_file_without_index_text_takes_it_away(library, tmp_path):
    plain = read_library([library]).skills
    augmented = SkillCorpus(Skill(s.skill_id, s.name, s.description, s.body, {"index_text": "z"}) for s in plain)
    build_index(tmp_path / "index", augmented, "bm25")
    plain.to_jsonl(tmp_path / "plain.jsonl")
    plan = plan_update(open_index(tmp_path / "index"), read_library(corpus=tmp_path / "plain.jsonl"))
    assert plan.changed == plain.ids
    assert plan.outdated == []


@pytest.mark.parametrize("both", [True, False])
def test_one_library_is_needed(library, index, both):
    with pytest.raises(ValueError, match=r"either folders of skills \(--skills\) or a corpus file \(--corpus\)"):
        update_index(index, [library] if both else [], corpus=library if both else None)


def test_where_no_index_is_none_is_made(library, tmp_path):
    with pytest.raises(IndexNotFoundError, match="no index here"):
        update_index(tmp_path / "none", [library])
    assert not (tmp_path / "none").exists()


def test_another_writer_is_not_disturbed(library, index):
    write_skill(library, "g")
    with writing(index), pytest.raises(IndexBusyError):
        update_index(index, [library])


# -- watching -------------------------------------------------------------------------------------------------------------


class Watched:
    """A watching thread and what it has reported."""

    def __init__(self, index: Path, library: Path) -> None:
        self.updates: list[Updated] = []
        self.errors: list[Exception] = []
        self.stop = threading.Event()
        updater = IndexUpdater(index, [library])
        arguments = (0.05, self.updates.append, self.errors.append, self.stop)
        self.thread = threading.Thread(target=updater.watch, args=arguments)
        self.thread.start()

    def wait_for(self, updates: int = 0, errors: int = 0) -> None:
        deadline = time.monotonic() + 30
        while len(self.updates) < updates or len(self.errors) < errors:
            assert time.monotonic() < deadline, (self.updates, self.errors)
            time.sleep(0.01)


@pytest.fixture
def watched(index: Path, library: Path):
    watching = Watched(index, library)
    yield watching
    watching.stop.set()
    watching.thread.join(30)


def test_watching_follows_the_folder(watched, library, index):
    watched.wait_for(updates=1)
    assert watched.updates[0].plan.empty
    write_skill(library, "g")
    watched.wait_for(updates=2)
    shutil.rmtree(library / "a")
    watched.wait_for(updates=3)
    assert [update.plan.added for update in watched.updates[1:]] == [["g"], []]
    assert open_index(index).skills.ids == ["b", "c", "d", "e", "f", "g"]


def test_watching_outlives_what_a_user_can_put_right(watched, library, index):
    watched.wait_for(updates=1)
    away = library.with_name("away")
    library.rename(away)
    watched.wait_for(errors=1)
    time.sleep(0.3)
    assert len(watched.errors) == 1  # said once
    write_skill(away, "g")
    away.rename(library)
    watched.wait_for(updates=2)
    assert watched.updates[-1].plan.added == ["g"]


def test_watching_tries_again_after_another_writer(watched, library, index):
    watched.wait_for(updates=1)
    with writing(index, wait=30):
        write_skill(library, "g")
        watched.wait_for(errors=1)
    watched.wait_for(updates=2)
    assert isinstance(watched.errors[0], IndexBusyError)
    assert watched.updates[-1].plan.added == ["g"]


def test_an_interval_of_nothing_is_refused(library, index):
    with pytest.raises(ValueError, match="interval is 0; expected a positive number of seconds"):
        IndexUpdater(index, [library]).watch(0, print, print)
