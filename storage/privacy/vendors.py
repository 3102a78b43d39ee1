"""The forms of vendors' keys: what each begins with, and how it goes on.

The literal is looked for first, so that a text without any costs some fifty searches of a string.
"""

import re


def _key(literal: str, pattern: str) -> tuple[str, re.Pattern[str]]:
    return literal, re.compile(rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])")


KEYS = (
    _key("sk-", r"sk-(?:(?:proj|svcacct|admin|ant|or-v1|lf)-[\w-]{20,}|[A-Za-z0-9]{20,})"),
    _key("pk-lf-", r"pk-lf-[0-9a-f-]{36}"),
    _key("fw-", r"fw-[\w-]{20,}"),
    _key("AKIA", r"AKIA[A-Z2-7]{16}"),
    _key("ASIA", r"ASIA[A-Z2-7]{16}"),
    _key("ghp_", r"ghp_[A-Za-z0-9]{36,}"),
    _key("gho_", r"gho_[A-Za-z0-9]{36,}"),
    _key("ghu_", r"ghu_[A-Za-z0-9]{36,}"),
    _key("ghs_", r"ghs_[A-Za-z0-9]{36,}"),
    _key("ghr_", r"ghr_[A-Za-z0-9]{36,}"),
    _key("github_pat_", r"github_pat_\w{22,}"),
    _key("glpat-", r"glpat-[\w-]{20,}"),
    _key("xox", r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    _key("xapp-", r"xapp-\d-[A-Za-z0-9-]{10,}"),
    _key("hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows)/[\w/]{20,}"),
    _key("discord", r"discord(?:app)?\.com/api/webhooks/\d{17,20}/[\w-]{60,}"),
    _key("AIza", r"AIza[\w-]{35}"),
    _key("ya29.", r"ya29\.[\w-]{20,}"),
    _key("GOCSPX-", r"GOCSPX-[\w-]{28}"),
    _key("_live_", r"(?:sk|rk|pk)_live_[A-Za-z0-9]{16,}"),
    _key("_test_", r"(?:sk|rk)_test_[A-Za-z0-9]{16,}"),
    _key("whsec_", r"whsec_[A-Za-z0-9+/=]{24,}"),
    _key("SK", r"SK[0-9a-f]{32}"),
    _key("SG.", r"SG\.[\w-]{16,32}\.[\w-]{16,64}"),
    _key("key-", r"key-[0-9a-f]{32}"),
    _key("-us", r"[0-9a-f]{32}-us\d{1,2}"),
    _key("hf_", r"hf_[A-Za-z0-9]{30,}"),
    _key("npm_", r"npm_[A-Za-z0-9]{36}"),
    _key("pypi-", r"pypi-AgE[\w-]{50,}"),
    _key("dckr_pat_", r"dckr_pat_[\w-]{20,}"),
    _key("_v1_", r"do[opr]_v1_[a-f0-9]{64}"),
    _key("shp", r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
    _key("sq0", r"sq0(?:atp|csp)-[\w-]{22,}"),
    _key(":AA", r"\d{8,10}:AA[\w-]{33}"),
    _key("lin_api_", r"lin_api_[A-Za-z0-9]{32,}"),
    _key("ntn_", r"ntn_[A-Za-z0-9]{40,}"),
    _key("dapi", r"dapi[0-9a-f]{32}(?:-\d)?"),
    _key("gsk_", r"gsk_[A-Za-z0-9]{40,}"),
    _key("r8_", r"r8_[A-Za-z0-9]{37}"),
    _key("xai-", r"xai-[A-Za-z0-9]{40,}"),
    _key("pplx-", r"pplx-[A-Za-z0-9]{40,}"),
    _key("lsv2_", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}"),
    _key("NRAK-", r"NRAK-[A-Z0-9]{27}"),
    _key("sntry", r"sntry[su]_[\w=+/-]{40,}"),
    _key("PMAK-", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    _key("hvs.", r"hvs\.[\w-]{24,}"),
    _key("AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
    _key("sbp_", r"sbp_[0-9a-f]{40}"),
    _key("figd_", r"figd_[\w-]{40}"),
    _key("dp.", r"dp\.(?:pt|st|ct|sa)\.[\w.-]{40,}"),
    _key("pat", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    _key("nvapi-", r"nvapi-[\w-]{60,}"),
    _key("tvly-", r"tvly-[\w-]{30,}"),
)
"""Literal -> the whole key's form."""
