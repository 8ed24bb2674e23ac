//! Endorsement keys by host. The host is known before Cluster API assigns a machine name to it.

use kubelet_attestation::names::ProviderId;
use node_attestation_core::identifiers::KeyDigest;

/// Hosts and their endorsement keys.
///
/// A host is identified by its machine's provider ID. An entry that ends with a `/` matches every provider ID that
/// begins with it. Such an entry matches only complete segments, so `metal3://metal/host-7/` does not match `host-70`.
/// The comparison is case-sensitive.
///
/// The list is a single sorted collection without a separate collection for each host, because
/// [`ConfigMaps`](node_attestation_runtime::config_maps) counts the memory of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hosts(Vec<(Box<str>, KeyDigest)>);

impl Hosts {
    /// Returns the keys of all entries that match this machine.
    pub(crate) fn keys_of<'a>(
        &'a self,
        provider_id: &'a ProviderId,
    ) -> impl Iterator<Item = KeyDigest> {
        let id = provider_id.as_str();
        let beginnings = id.match_indices('/').filter_map(|(at, _)| id.get(..=at));
        let whole = (!id.ends_with('/')).then_some(id);
        beginnings.chain(whole).flat_map(|host| self.keys_at(host))
    }

    fn keys_at<'a>(&'a self, host: &'a str) -> impl Iterator<Item = KeyDigest> {
        let first = self.0.partition_point(|(other, _)| **other < *host);
        let entries = self.0.iter().skip(first);
        let entries = entries.take_while(move |(other, _)| **other == *host);
        entries.map(|(_, key)| *key)
    }
}

impl FromIterator<(ProviderId, KeyDigest)> for Hosts {
    fn from_iter<T: IntoIterator<Item = (ProviderId, KeyDigest)>>(entries: T) -> Self {
        let entries = entries.into_iter();
        let entries = entries.map(|(host, key)| (Box::from(host.as_str()), key));
        let mut entries: Vec<(Box<str>, KeyDigest)> = entries.collect();
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Self(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> KeyDigest {
        KeyDigest::parse(&format!("{byte:02x}").repeat(32)).unwrap()
    }

    fn hosts(entries: &[(&str, u8)]) -> Hosts {
        let parsed = |&(host, byte): &(&str, u8)| (ProviderId::parse(host).unwrap(), key(byte));
        entries.iter().map(parsed).collect()
    }

    fn keys(hosts: &Hosts, provider_id: &str) -> Vec<KeyDigest> {
        let provider_id = ProviderId::parse(provider_id).unwrap();
        hosts.keys_of(&provider_id).collect()
    }

    /// Asserts that each machine has this key, or no key, if the list contains these entries.
    #[track_caller]
    fn assert_keys(entries: &[(&str, u8)], machines: &[(&str, Option<u8>)]) {
        let hosts = hosts(entries);
        for (machine, byte) in machines {
            let expected: Vec<_> = byte.map(key).into_iter().collect();
            assert_eq!(keys(&hosts, machine), expected, "{machine}");
        }
    }

    #[test]
    fn a_provider_id_prefix_matches_only_whole_segments() {
        assert_keys(
            &[("metal3://metal/host-7/", 7)],
            &[
                ("metal3://metal/host-7/prod-1-md-0-x7f2p", Some(7)),
                ("metal3://metal/host-7/a/b", Some(7)),
                ("metal3://metal/host-7/", Some(7)),
                ("metal3://metal/host-70/prod-1-md-0-x7f2p", None),
                ("metal3://metal/host-7", None),
                ("metal3://metal/host", None),
                ("metal3://metal/Host-7/prod-1-md-0-x7f2p", None),
                ("Metal3://metal/host-7/prod-1-md-0-x7f2p", None),
                ("metal3:///metal/host-7/prod-1-md-0-x7f2p", None),
                ("metal3://other/metal3://metal/host-7/x", None),
            ],
        );
    }

    #[test]
    fn a_complete_provider_id_matches_exactly_one_machine() {
        assert_keys(
            &[
                ("tinkerbell://metal/host-7", 7),
                ("maas:///zone-1/abc123", 1),
            ],
            &[
                ("tinkerbell://metal/host-7", Some(7)),
                ("maas:///zone-1/abc123", Some(1)),
                ("tinkerbell://metal/host-70", None),
                ("tinkerbell://metal/host-7/x", None),
                ("tinkerbell://metal/host-7/", None),
                ("maas:///zone-1/ABC123", None),
            ],
        );
    }

    #[test]
    fn all_list_entries_of_a_machine_are_found() {
        let hosts = hosts(&[
            ("metal3://metal/", 1),
            ("metal3://metal/host-7/", 2),
            ("metal3://metal/host-7/", 3),
            ("metal3://metal/host-7/m-1", 4),
            ("metal3://metal/host-8/", 5),
        ]);

        let mut found = keys(&hosts, "metal3://metal/host-7/m-1");

        found.sort_by_key(ToString::to_string);
        assert_eq!(found, [key(1), key(2), key(3), key(4)]);
    }
}
