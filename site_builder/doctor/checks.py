"""The table of all that `gpuboard doctor` looks at, in this order; docs/doctor.md tells of each."""

from __future__ import annotations

from site_builder.doctor import alerts, builder, consul, data_folder, program, scheduler, ssh_keys, web_server
from site_builder.doctor.check_result import Check

CHECKS = (
    Check("program", "python", program.python),
    Check("program", "packages", program.packages),
    Check("program", "settings", program.settings),
    Check("data", "data", data_folder.folder),
    Check("data", "comments", data_folder.comments),
    Check("data", "lists", data_folder.lists),
    Check("data", "hosts", data_folder.hosts),
    Check("data", "clocks", data_folder.clocks),
    Check("data", "problems", data_folder.problems),
    Check("data", "keys", ssh_keys.keys),
    Check("data", "consul", consul.consul),
    Check("data", "kv", consul.kv),
    Check("builder", "cron-daemon", scheduler.cron_daemon),
    Check("builder", "cron-allowed", scheduler.cron_allowed),
    Check("builder", "crontab", scheduler.crontab),
    Check("builder", "linger", scheduler.linger),
    Check("builder", "state", builder.state),
    Check("builder", "www", builder.site),
    Check("builder", "builder", builder.builder),
    Check("builder", "disk", builder.disk),
    Check("builder", "history", builder.history),
    Check("alerts", "rules", alerts.rules),
    Check("alerts", "channels", alerts.channels),
    Check("alerts", "contacts", alerts.contacts),
    Check("alerts", "hooks", alerts.hooks),
    Check("alerts", "letters", alerts.letters),
    Check("alerts", "slack", alerts.bot),
    Check("web", "url", web_server.address),
    Check("web", "types", web_server.types),
    Check("web", "caching", web_server.caching),
    Check("web", "headers", web_server.headers),
    Check("web", "gzip", web_server.packed),
    Check("web", "built", web_server.built),
    Check("web", "closed", web_server.closed),
)
