"""Checks which addresses an endpoint may have, and that no other is ever connected to."""

import socket
from ipaddress import ip_network

import pytest

from registry_service.upstreams.egress import AddressRefusedError, Guard

EVERYTHING = [ip_network("0.0.0.0/0"), ip_network("::/0")]
LOOPBACK = [ip_network("127.0.0.0/8")]


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808", "2002:808:808::1", "::ffff:8.8.8.8"],
)
def test_public_addresses_need_no_setting(address):
    assert Guard([]).allows(address)


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.168.0.1",
        "198.18.0.1",
        "203.0.113.9",
        "240.0.0.1",
        "::1",
        "fd12::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:100.64.0.1",
        "::ffff:0:10.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::a00:1",
        "2002:a00:1::1",
        "2001:0:808:808:0:0:f5ff:fffe",
        "2606:4700::5efe:10.0.0.1",
        "::10.0.0.1",
    ],
)
def test_other_addresses_need_a_setting(address):
    assert not Guard([]).allows(address)
    assert Guard(EVERYTHING).allows(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "169.254.0.1",
        "168.63.129.16",
        "100.100.100.200",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "::ffff:0:169.254.169.254",
        "::169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:0:808:808:0:0:5601:5601",
        "2001:0:a9fe:a9fe:0:0:f7f7:f7f7",
        "2606:4700::5efe:169.254.169.254",
        "2606:4700::200:5efe:169.254.169.254",
    ],
)
def test_some_addresses_are_refused_whatever_the_settings_say(address):
    assert not Guard(EVERYTHING).allows(address)


def test_a_network_admits_its_addresses_in_any_form_and_no_others():
    guard = Guard([ip_network("10.0.0.0/8")])
    assert guard.allows("10.0.0.1")
    assert guard.allows("::ffff:10.0.0.1")
    assert not guard.allows("11.0.0.1.example")
    assert not guard.allows("127.0.0.1")
    assert not guard.allows("fd00::1")


def test_no_socket_is_made_for_a_refused_address():
    with pytest.raises(AddressRefusedError):
        Guard([]).make_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80)))
