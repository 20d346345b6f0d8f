"""Mutations of maintenance: without a rule, the simulation must fail with at least one seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparklog.compaction import clean_work, merge_work, seal_plan, seal_work
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.state import commit_log
from sparklog.log.state.commit import COMPACT, RemovedSlices
from sparklog.log.state.commit_intents import Draft
from sparklog.log.state.rewrites import RewriteIntent
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.engine import TopicLog
from sparklog.retention import backlog, vacuum, vacuum_plan
from sparklog.retention.vacuum import UpkeepIntent
from sparklog.testing.world import DAY_MS
from tests.maintenance.simulation.seeds import MAINTENANCE
from tests.support.simulation.sweeps import BrokenRule, Patch, broken_rules


def vacuum_forgets_later_commits(patch: Patch) -> None:
    """Keep only files that the state at the floor references, not those of later commits."""
    real = vacuum._read_paths

    def at_the_floor(run: Any) -> None:
        real(run)
        run.referenced_paths = run.history.at(run.floor).slices.paths()

    patch.setattr(vacuum, "_read_paths", at_the_floor)


def vacuum_forgets_commits_made_meanwhile(patch: Patch) -> None:
    """Delete files that are committed between the listing and the commit of the floor."""
    patch.setattr(vacuum, "_read_new_paths", lambda run, after: None)


def floor_is_not_committed(patch: Patch) -> None:
    """Delete files without a floor that rejects commits of these files."""
    real = UpkeepIntent.draft

    def without(self: UpkeepIntent, *given: Any) -> Any:
        return real(replace(self, floor=None), *given)

    patch.setattr(UpkeepIntent, "draft", without)


def files_go_at_once(patch: Patch) -> None:
    """Ignore `file.delete.delay.ms`."""
    patch.setattr(vacuum, "delete_delay_ms", lambda history, state, settings: 0)


def commits_go_at_once(patch: Patch) -> None:
    """Delete commits as soon as a checkpoint contains them."""
    patch.setattr(vacuum_plan, "commit_retention_ms", lambda delay_ms: 0)


def leases_have_no_effect(patch: Patch) -> None:
    """Ignore leases in the vacuum."""
    patch.setattr(vacuum._Vacuum, "leased_versions", lambda self, state: [])


def passes_in_halves(patch: Patch) -> None:
    """Commit a cleaning pass by segment, the newer half first."""
    real = TopicLog.commit

    def halves(self: TopicLog, intent: Any, origin: TopicState | None = None, **named: Any) -> Any:
        if not isinstance(intent, RewriteIntent) or intent.op != COMPACT:
            return real(self, intent, origin, **named)
        (whole,) = intent.rewrites
        cut = max((file.base[0] for file in intent.files), default=0)
        for inputs in ([i for i in whole.inputs if i.base >= cut], [i for i in whole.inputs if i.base < cut]):
            if inputs:
                edit = replace(whole.edit, start=inputs[0].base, end=inputs[-1].end)
                part = replace(intent, rewrites=(replace(whole, edit=edit, inputs=tuple(inputs)),))
                outcome = real(self, part, origin)
        return outcome

    patch.setattr(TopicLog, "commit", halves)


def edits_always_stand(patch: Patch) -> None:
    """Commit a rewrite without a comparison with later commits."""

    def whatever_is_there(self: RewriteIntent, topic: str, base: TopicState, origin: TopicState, table: Any) -> Draft:
        removals = []
        for rewrite in self.rewrites:
            for item in rewrite.inputs:
                removal = RemovedSlices(item.path, (rewrite.edit.partition,), (item.base,), (item.position,))
                if table.find(removal)[0] >= 0:
                    removals.append(removal)
        return Draft(self.op, files=self.files, remove=tuple(removals), edits=tuple(r.edit for r in self.rewrites))

    patch.setattr(RewriteIntent, "draft", whatever_is_there)


def open_slices_are_sealed(patch: Patch) -> None:
    """Seal slices at and above the last stable offset without validation."""
    real = seal_plan._rows_to_seal

    def all_of_them(*given: Any) -> int:
        return real(*given[:4], 2**62, given[5])

    patch.setattr(seal_plan, "_rows_to_seal", all_of_them)
    patch.setattr(commit_log, "check_commit", lambda before, commit, after: None)


def aborted_slices_are_sealed(patch: Patch) -> None:
    """Seal and merge aborted slices like committed slices."""
    patch.setattr(PlannedSlice, "aborted", property(lambda self: False))
    assert seal_work.PlannedSlice is merge_work.PlannedSlice is PlannedSlice


def tombstones_go_too_early(patch: Patch) -> None:
    """Ignore `delete.retention.ms`."""
    real = clean_work.CleanWork._pass

    def early(self: clean_work.CleanWork, *given: Any) -> Any:
        configs = replace(self.configs, explicit={**self.configs.explicit, "delete.retention.ms": "0"})
        return real(replace(self, configs=configs), *given)

    patch.setattr(clean_work.CleanWork, "_pass", early)


def pass_claims_too_much(patch: Patch) -> None:
    """Set cleaned-through to the first uncleanable offset, even if the map was full before."""
    real = clean_work.CleanWork._pass

    def claims(self: clean_work.CleanWork, plan: Any, *given: Any) -> Any:
        files, cleaned = real(self, plan, *given)
        return files, replace(cleaned, end_offset=self._slice(cleaned.segments[-1]).end)

    patch.setattr(clean_work.CleanWork, "_pass", claims)


def retention_is_a_day_ahead(patch: Patch) -> None:
    """Expire records a day too early."""
    real = backlog.plan_expiry

    def ahead(*given: Any, now_ms: int, **more: Any) -> Any:
        return real(*given, now_ms=now_ms + DAY_MS, **more)

    patch.setattr(backlog, "plan_expiry", ahead)


@broken_rules(
    *(
        BrokenRule(rule, profile, range(first, first + 200))
        for rule, profile, first in (
            (vacuum_forgets_later_commits, "slow", 3),
            (vacuum_forgets_commits_made_meanwhile, "rush", 22),
            (floor_is_not_committed, "slow", 0),
            (files_go_at_once, "calm", 0),
            (commits_go_at_once, "calm", 0),
            (leases_have_no_effect, "calm", 0),
            (passes_in_halves, "calm", 0),
            (edits_always_stand, "rush", 0),
            (open_slices_are_sealed, "calm", 17),
            (aborted_slices_are_sealed, "calm", 11),
            (tombstones_go_too_early, "calm", 23),
            (pass_claims_too_much, "calm", 23),
            (retention_is_a_day_ahead, "calm", 0),
        )
    )
)
def test_some_seed_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    MAINTENANCE.assert_fails(rule, monkeypatch)
