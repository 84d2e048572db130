"""The table of all that `gpuboard doctor` looks at, in this order; docs/doctor.md tells of each."""

from __future__ import annotations

from site_builder.doctor import building, catalog, data, keys, program, served, starting, telling
from site_builder.doctor.found import Check

CHECKS = (
    Check("program", "python", program.python),
    Check("program", "packages", program.packages),
    Check("program", "settings", program.settings),
    Check("data", "data", data.folder),
    Check("data", "comments", data.comments),
    Check("data", "lists", data.lists),
    Check("data", "hosts", data.hosts),
    Check("data", "clocks", data.clocks),
    Check("data", "problems", data.problems),
    Check("data", "keys", keys.keys),
    Check("data", "consul", catalog.consul),
    Check("data", "kv", catalog.kv),
    Check("builder", "cron-daemon", starting.cron_daemon),
    Check("builder", "cron-allowed", starting.cron_allowed),
    Check("builder", "crontab", starting.crontab),
    Check("builder", "linger", starting.linger),
    Check("builder", "state", building.state),
    Check("builder", "www", building.site),
    Check("builder", "builder", building.builder),
    Check("builder", "disk", building.disk),
    Check("builder", "history", building.history),
    Check("alerts", "rules", telling.rules),
    Check("alerts", "channels", telling.channels),
    Check("alerts", "contacts", telling.contacts),
    Check("alerts", "hooks", telling.hooks),
    Check("alerts", "letters", telling.letters),
    Check("alerts", "slack", telling.bot),
    Check("web", "url", served.address),
    Check("web", "types", served.types),
    Check("web", "caching", served.caching),
    Check("web", "headers", served.headers),
    Check("web", "gzip", served.packed),
    Check("web", "built", served.built),
    Check("web", "closed", served.closed),
)
