"""Which URLs pass, which addresses are dialled: a table of tricks, and resolvers that lie."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest

from relaybox.brokers.webhook.ssrf import AddressRules, CheckedUrl, refusal
from relaybox.errors import ConfigError, DeliveryError

ALLOWED = {
    "https://hooks.example": ("https", "hooks.example", 443, "/"),
    "https://hooks.example/in": ("https", "hooks.example", 443, "/in"),
    "https://hooks.example:8443/in?token=a%2Fb&x=1": ("https", "hooks.example", 8443, "/in?token=a%2Fb&x=1"),
    "https://hooks.example?x=@y": ("https", "hooks.example", 443, "/?x=@y"),
    "https://hooks.example/@user:pass": ("https", "hooks.example", 443, "/@user:pass"),
    "HTTPS://Hooks.EXAMPLE/In": ("https", "hooks.example", 443, "/In"),
    "https://xn--bcher-kva.example/": ("https", "xn--bcher-kva.example", 443, "/"),
    "https://my_service.example/": ("https", "my_service.example", 443, "/"),
    "https://1.example/": ("https", "1.example", 443, "/"),
    "https://93.184.216.34/": ("https", "93.184.216.34", 443, "/"),
    "https://[2606:2800:220:1:248:1893:25c8:1946]/": ("https", "2606:2800:220:1:248:1893:25c8:1946", 443, "/"),
    "https://[2606:2800:0220:0001:0248:1893:25C8:1946]:443/": (
        "https",
        "2606:2800:220:1:248:1893:25c8:1946",
        443,
        "/",
    ),
}

REFUSED = [
    # scheme and shape
    "http://hooks.example/",
    "ftp://hooks.example/",
    "file:///etc/passwd",
    "gopher://hooks.example/",
    "javascript:alert(1)",
    "//hooks.example/",
    "https:/hooks.example/",
    "https:///hooks.example/",
    "https://",
    "https://:443/",
    "https:hooks.example",
    "",
    "hooks.example",
    " https://hooks.example/",
    "https://hooks.example/ ",
    "https://hooks.example/\n",
    "https://hooks.example/\r\nX-Injected: 1",
    "https://hooks.example/\tx",
    "https://hooks.example/\x00",
    "https://hooks.example/é",
    "https://hooks.example/#fragment",
    # users, backslashes and other ways to point elsewhere
    "https://user@hooks.example/",
    "https://user:password@hooks.example/",
    "https://hooks.example@169.254.169.254/",
    "https://hooks.example:443@127.0.0.1/",
    "https://hooks.example\\@127.0.0.1/",
    "https://127.0.0.1\\@hooks.example/",
    "https:\\\\hooks.example/",
    "https://hooks.example%40127.0.0.1/",
    "https://hooks.example%00.127.0.0.1/",
    "https://127.0.0.1%2f@hooks.example/",
    "https://hooks.example;127.0.0.1/",
    "https://hooks.example,127.0.0.1/",
    # names that are none
    "https://hooks..example/",
    "https://.hooks.example/",
    "https://hooks.example./",
    "https://-hooks.example/",
    "https://hooks-.example/",
    "https://" + "a" * 64 + ".example/",
    "https://" + ".".join(["a" * 60] * 5) + "/",
    "https://bücher.example/",
    "https://ⓗooks.example/",
    "https://hooks。example/",
    "https://１２７.0.0.1/",
    # ports
    "https://hooks.example:80/",
    "https://hooks.example:22/",
    "https://hooks.example:0/",
    "https://hooks.example:65979/",
    "https://hooks.example:443443/",
    "https://hooks.example:-443/",
    "https://hooks.example:+443/",
    "https://hooks.example:٤٤٣/",
    "https://hooks.example:/",
    # IPv4, in all its spellings
    "https://127.0.0.1/",
    "https://127.1/",
    "https://127.0.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0x7f.1/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://127.0.0.01/",
    "https://00127.0.0.1/",
    "https://127.0.0.1.5/",
    "https://1.2.3.256/",
    "https://1.2.3/",
    "https://0x/",
    "https://0/",
    "https://0.0.0.0/",
    "https://hooks.example.0x1/",
    "https://10.0.0.1/",
    "https://100.64.0.1/",
    "https://100.100.100.200/",
    "https://168.63.129.16/",
    "https://169.254.169.254/latest/meta-data/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.0.0.192/",
    "https://192.0.2.1/",
    "https://192.88.99.1/",
    "https://192.168.1.1/",
    "https://198.18.0.1/",
    "https://198.51.100.1/",
    "https://203.0.113.1/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    # IPv6 and its brackets
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:8.8.8.8]/",
    "https://[::127.0.0.1]/",
    "https://[::ffff:0:127.0.0.1]/",
    "https://[64:ff9b::8.8.8.8]/",
    "https://[64:ff9b:1::a00:1]/",
    "https://[2001::1]/",
    "https://[2001:db8::1]/",
    "https://[2002:7f00:1::]/",
    "https://[3fff::1]/",
    "https://[4000::1]/",
    "https://[100::1]/",
    "https://[5f00::1]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[fec0::1]/",
    "https://[ff02::1]/",
    "https://[::1/",
    "https://::1]/",
    "https://[hooks.example]/",
    "https://[127.0.0.1]/",
    "https://[]/",
    "https://[v1.fe80]/",
    "https://[::1].hooks.example/",
    "https://hooks.example[::1]/",
    "https://[[::1]]/",
    "https://[2606:2800:220:1:248:1893:25c8:1946]hooks.example/",
    "https://[2606:2800::1::1]/",
]


@pytest.mark.parametrize(("url", "parts"), ALLOWED.items())
def test_allowed(url: str, parts: tuple[str, str, int, str]) -> None:
    assert AddressRules().target(url) == CheckedUrl(*parts)


@pytest.mark.parametrize("url", REFUSED)
def test_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        AddressRules().target(url)


def test_messages_hold_no_secret_of_the_url() -> None:
    for url in (
        "https://user:canary@hooks.example/",
        "http://hooks.example/canary?t=canary",
        "https://hooks.example:22/canary",
        "https://10.0.0.1/canary",
        "https://0x7f.1/canary",
        "https://hooks.example/canary\n",
    ):
        with pytest.raises(ConfigError) as caught:
            AddressRules().target(url)
        assert "canary" not in str(caught.value)
    assert "canary" not in repr(AddressRules().target("https://hooks.example/canary"))


def test_plain_http_has_to_be_asked_for() -> None:
    guard = AddressRules(http=True)
    assert guard.target("http://hooks.example/").port == 80
    assert guard.target("http://hooks.example:8080/").authority == "hooks.example:8080"
    assert guard.target("https://hooks.example/").port == 443
    with pytest.raises(ConfigError, match="insecure_http"):
        AddressRules().target("http://hooks.example/")
    with pytest.raises(ConfigError, match="port 80 "):
        AddressRules().target("https://hooks.example:80/")


def test_other_ports() -> None:
    guard = AddressRules(ports=[9443])
    assert guard.target("https://hooks.example:9443/").port == 9443
    with pytest.raises(ConfigError, match="not one of the allowed: 9443"):
        guard.target("https://hooks.example/")


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("https://hooks.example/", "hooks.example"),
        ("https://hooks.example:443/", "hooks.example"),
        ("https://hooks.example:8443/", "hooks.example:8443"),
        ("http://hooks.example/", "hooks.example"),
        ("http://hooks.example:443/", "hooks.example:443"),
        ("https://[2606:2800::1]:8443/", "[2606:2800::1]:8443"),
    ],
)
def test_the_host_header(url: str, authority: str) -> None:
    assert AddressRules(http=True).target(url).authority == authority


# -- addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "kind"),
    [
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("2001::/32", "Teredo"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
    ],
)
def test_a_network_up_to_its_edges(network: str, kind: str) -> None:
    edges = ip_network(network)
    assert refusal(edges[0]) == refusal(edges[-1]) == kind


NEIGHBOURS = """
    1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 168.63.129.15 168.63.129.17
    169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.167.255.255 192.169.0.0
    198.17.255.255 198.20.0.0 223.255.255.255 2000:: 2001:200:: 2003:: 2a00::1 2fff::1 3ffe:ffff::1
"""


@pytest.mark.parametrize("address", NEIGHBOURS.split())
def test_public_neighbours(address: str) -> None:
    assert refusal(ip_address(address)) is None


@pytest.mark.parametrize("address", ["1fff:ffff::1", "4000::", "8000::", "::2", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_ipv6_that_nobody_was_given(address: str) -> None:
    assert refusal(ip_address(address)) is not None


class Names:
    """A resolver with a script: each lookup takes the next answer, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_a_name_with_public_addresses() -> None:
    names = Names(["93.184.216.34", "2606:2800::1"])
    found = await AddressRules(resolver=names).addresses("hooks.example", 443)
    assert [str(address) for address in found] == ["93.184.216.34", "2606:2800::1"]
    assert names.asked == [("hooks.example", 443)]


@pytest.mark.parametrize(
    "bad", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:93.184.216.34", "fe80::1%lo"]
)
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_bad_address_spoils_the_name(bad: str, place: int) -> None:
    answer = ["93.184.216.34", "2606:2800::1"]
    answer.insert(place, bad)
    with pytest.raises(DeliveryError, match="allow_networks"):
        await AddressRules(resolver=Names(answer)).addresses("hooks.example", 443)


async def test_an_answer_that_is_no_address() -> None:
    with pytest.raises(DeliveryError, match="no address"):
        await AddressRules(resolver=Names(["0x7f000001"])).addresses("hooks.example", 443)


async def test_an_empty_answer_is_an_outage() -> None:
    with pytest.raises(OSError, match="has no address"):
        await AddressRules(resolver=Names([])).addresses("hooks.example", 443)


async def test_a_literal_is_not_looked_up() -> None:
    names = Names(["10.0.0.1"])
    assert await AddressRules(resolver=names).addresses("93.184.216.34", 443) == [ip_address("93.184.216.34")]
    assert await AddressRules(resolver=names).addresses("2606:2800::1", 443) == [ip_address("2606:2800::1")]
    with pytest.raises(DeliveryError, match="loopback"):
        await AddressRules(resolver=names).addresses("127.0.0.1", 443)
    assert names.asked == []


async def test_networks_that_are_allowed_by_name() -> None:
    guard = AddressRules(allow_networks=["10.8.0.0/16", "fd00:1::/32"], resolver=Names(["10.8.3.4", "fd00:1::9"]))
    assert len(await guard.addresses("inside.example", 443)) == 2
    assert guard.target("https://10.8.0.1/").host == "10.8.0.1"
    for url in ("https://10.9.0.1/", "https://[::ffff:10.8.0.1]/", "https://[fd00:2::1]/", "https://10.8.1/"):
        with pytest.raises(ConfigError):
            guard.target(url)


@pytest.mark.parametrize("text", ["10.8.0.1/16", "ten", "10.0.0.0/33", ""])
def test_networks_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="allow_networks"):
        AddressRules(allow_networks=[text])


async def test_the_systems_resolver() -> None:
    guard = AddressRules(allow_networks=["127.0.0.0/8", "::1/128"])
    try:
        assert await guard.addresses("localhost", 443)
        with pytest.raises(socket.gaierror):
            await guard.addresses("nowhere.invalid", 443)
    finally:
        guard.close()
        guard.close()
    assert await guard.addresses("localhost", 443), "a closed guard may be used again, like the sink"
    guard.close()
    for thread in threading.enumerate():
        if thread.name.startswith("relaybox-lookup"):
            thread.join(5)
            assert not thread.is_alive()
