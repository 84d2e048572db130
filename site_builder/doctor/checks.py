"""The table of all that `gpuboard doctor` looks at, in this order; docs/doctor.md tells of each."""

from __future__ import annotations

from site_builder.doctor import alert_checks, builder_checks, data_checks, web_checks
from site_builder.doctor.model import Check

CHECKS = (
    Check("program", "python", builder_checks.check_python),
    Check("program", "packages", builder_checks.check_packages),
    Check("program", "settings", builder_checks.check_settings),
    Check("data", "data", data_checks.check_data_folder),
    Check("data", "comments", data_checks.check_bookings_file),
    Check("data", "lists", data_checks.check_name_lists),
    Check("data", "hosts", data_checks.check_hosts),
    Check("data", "clocks", data_checks.check_host_clocks),
    Check("data", "problems", data_checks.check_host_problems),
    Check("data", "keys", data_checks.check_authorized_keys),
    Check("data", "consul", data_checks.check_consul),
    Check("data", "kv", data_checks.check_kv_store),
    Check("builder", "cron-daemon", builder_checks.check_cron_daemon),
    Check("builder", "cron-allowed", builder_checks.check_cron_allowed),
    Check("builder", "crontab", builder_checks.check_crontab),
    Check("builder", "linger", builder_checks.check_linger),
    Check("builder", "state", builder_checks.check_state_folder),
    Check("builder", "www", builder_checks.check_www_folder),
    Check("builder", "builder", builder_checks.check_builder),
    Check("builder", "disk", builder_checks.check_disk_space),
    Check("builder", "history", builder_checks.check_history),
    Check("alerts", "rules", alert_checks.check_alert_rules),
    Check("alerts", "channels", alert_checks.check_channels),
    Check("alerts", "contacts", alert_checks.check_contacts),
    Check("alerts", "hooks", alert_checks.check_hooks),
    Check("alerts", "letters", alert_checks.check_notifications),
    Check("alerts", "slack", alert_checks.check_slack_bot),
    Check("web", "url", web_checks.check_board_url),
    Check("web", "types", web_checks.check_content_types),
    Check("web", "caching", web_checks.check_caching),
    Check("web", "headers", web_checks.check_security_headers),
    Check("web", "gzip", web_checks.check_compression),
    Check("web", "built", web_checks.check_served_age),
    Check("web", "closed", web_checks.check_private_files),
)
