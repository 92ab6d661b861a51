//! What kind of address a name led to. Asked after each resolution, so that a name that is rebound gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Who is behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    Public,
    /// A machine of this network, or this one.
    Private,
    /// Nobody's, a crowd's, or a cloud's metadata service: reached only where the operator grants the network itself.
    Special(&'static str),
}

/// Tell what an address is. One that stands for an IPv4 address is what that is.
pub fn kind(address: IpAddr) -> AddressKind {
    match address.to_canonical() {
        IpAddr::V4(v4) => kind_v4(v4),
        IpAddr::V6(v6) => kind_v6(v6),
    }
}

fn kind_v4(address: Ipv4Addr) -> AddressKind {
    match address.octets() {
        [0, ..] => AddressKind::Special("an unspecified address"),
        [169, 254, ..] => AddressKind::Special("a link-local address, where clouds keep their metadata"),
        // Alibaba, Azure; Oracle's lies among the addresses of protocols.
        [100, 100, 100, 200] | [168, 63, 129, 16] => AddressKind::Special("a metadata service"),
        [192, 0, 0, _] => AddressKind::Special("an address of protocols, where clouds keep their metadata"),
        [224..=239, ..] => AddressKind::Special("a multicast address"),
        [255, 255, 255, 255] => AddressKind::Special("the broadcast address"),
        [240..=255, ..] => AddressKind::Special("a reserved address"),
        [10 | 127, ..] | [192, 168, ..] | [172, 16..=31, ..] | [100, 64..=127, ..] | [198, 18..=19, ..] => {
            AddressKind::Private
        }
        _ => AddressKind::Public,
    }
}

fn kind_v6(address: Ipv6Addr) -> AddressKind {
    let embedded = |high: u16, low: u16| kind_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressKind::Special("the unspecified address"),
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressKind::Private,
        // IPv4-compatible, IPv4-translated (RFC 2765), NAT64 (RFC 6052), 6to4.
        [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => embedded(high, low),
        // Where in it the IPv4 address lies is the network's own choice (RFC 8215).
        [0x64, 0xff9b, 1, ..] => AddressKind::Special("an address behind a local NAT64"),
        [0x2001, 0, ..] => AddressKind::Special("a Teredo address"),
        // AWS, Google.
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => {
            AddressKind::Special("a metadata service")
        }
        [0xff00..=0xffff, ..] => AddressKind::Special("a multicast address"),
        [0xfe80..=0xfebf, ..] => AddressKind::Special("a link-local address"),
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => AddressKind::Private,
        _ => AddressKind::Public,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> AddressKind {
        kind(text.parse().unwrap())
    }

    #[test]
    fn addresses_of_clouds_and_crowds_are_special() {
        for special in [
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "64:ff9b:1::7f00:1",
            "2001:0:1::1",
        ] {
            assert!(matches!(of(special), AddressKind::Special(_)), "{special}");
        }
    }

    #[test]
    fn private_and_public_addresses_are_told_apart() {
        for private in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "198.18.0.1",
        ] {
            assert_eq!(of(private), AddressKind::Private, "{private}");
        }
        for private in ["::1", "fc00::1", "fd00::1", "fec0::1"] {
            assert_eq!(of(private), AddressKind::Private, "{private}");
        }
        for public in
            ["203.0.113.9", "172.32.0.1", "100.128.0.1", "192.0.1.1", "9.9.9.9", "2606:4700::1111", "2001:db8::1"]
        {
            assert_eq!(of(public), AddressKind::Public, "{public}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_way_to_write_an_ipv4_address_makes_it_another_kind(bits: u32) {
            let v4 = Ipv4Addr::from_bits(bits);
            let (high, low) = ((bits >> 16) as u16, bits as u16);
            let segments = [
                [0, 0, 0, 0, 0, 0xffff, high, low],
                [0, 0, 0, 0, 0xffff, 0, high, low],
                [0x64, 0xff9b, 0, 0, 0, 0, high, low],
                [0x2002, high, low, 7, 0, 0, 0, 1],
            ];
            for segments in segments {
                let written = IpAddr::from(Ipv6Addr::from(segments));
                assert_eq!(kind(written), kind(v4.into()), "{written}");
            }
        }
    }
}
