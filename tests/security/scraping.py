"""Where a service answers scrapes, and what it answers."""

from __future__ import annotations

import re
import ssl
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from access.files import TlsFiles
from planner.client.local_cluster import ServiceProcess
from tests.waiting import WAIT_SECONDS

_SERVING = re.compile(r"serving metrics.*address='?([^'\s]+)")
# (name, labels in order) to value.
Samples = dict[tuple[str, tuple[str, ...]], float]


def metrics_address(service: ServiceProcess) -> str:
    address = _SERVING.search(service.log_path.read_text())
    assert address is not None, f"{service.log_path} names no address of metrics"
    return address[1]


def scrape(service: ServiceProcess, files: TlsFiles) -> Samples:
    context = ssl.create_default_context(cafile=str(files.authorities))
    context.load_cert_chain(files.certificate, files.key)
    with urlopen(f"https://{metrics_address(service)}/metrics", timeout=WAIT_SECONDS, context=context) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sample.labels.values())): sample.value for family in families for sample in family.samples
    }
