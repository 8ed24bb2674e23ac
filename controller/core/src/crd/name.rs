//! Names of objects that belong to one node of one Cluster.

use aws_lc_rs::digest::{Context, SHA256};
use kubelet_attestation::names::NodeName;

/// The maximum length of an object name (a DNS-1123 subdomain).
const MAX_NAME: usize = 253;

/// The maximum length of a label value, and therefore of a Cluster name.
const MAX_CLUSTER: usize = 63;

/// The name of a node's [`NodeIdentity`](super::NodeIdentity): `<cluster>.<node name>`.
///
/// If this name is too long, or is ambiguous because the Cluster name contains a dot, the name has a different form.
/// Its first label is the Cluster name with a digest of both names. The node name follows, truncated to the maximum
/// length. The first label is longer than any valid Cluster name, so no other pair of names produces the same object
/// name.
///
/// # Guarantees
///
/// The result is a DNS-1123 subdomain for every input. Different inputs produce different results.
pub fn object_name(cluster: &str, node_name: &str) -> String {
    let plain = format!("{cluster}.{node_name}");
    let is_clear = !cluster.contains('.') && cluster.len() <= MAX_CLUSTER;
    if is_clear && NodeName::parse(&plain).is_ok() {
        return plain;
    }
    digested(cluster, node_name)
}

fn digested(cluster: &str, node_name: &str) -> String {
    let mut context = Context::new(&SHA256);
    for part in [cluster, node_name] {
        context.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        context.update(part.as_bytes());
    }
    let digest = data_encoding::HEXLOWER.encode(context.finish().as_ref());
    let cluster: String = tame(cluster).replace('.', "-");
    let cluster: String = cluster.chars().take(MAX_CLUSTER).collect();
    let node: String = tame(node_name)
        .chars()
        .take(MAX_NAME - MAX_CLUSTER - digest.len() - 2)
        .collect();
    // The truncated text can end with a hyphen or a dot.
    let node = node.trim_end_matches(['-', '.']);
    let label = [cluster.trim_end_matches('-'), &digest].join("-");
    [label.trim_start_matches('-'), node]
        .join(".")
        .trim_end_matches('.')
        .to_owned()
}

/// Replaces all characters that are not allowed in a name. The result is a DNS-1123 subdomain, or empty.
fn tame(text: &str) -> String {
    let is_other = |c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit();
    let labels = text.split('.').map(|label| label.replace(is_other, "-"));
    let labels = labels.map(|label| label.trim_matches('-').to_owned());
    let labels: Vec<_> = labels.filter(|label| !label.is_empty()).collect();
    labels.join(".")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_record_is_named_after_cluster_and_node() {
        assert_eq!(object_name("prod-1", "node-7"), "prod-1.node-7");
        assert_eq!(
            object_name("prod-1", "ip-10-0-0-1.eu-west-1.compute.internal"),
            "prod-1.ip-10-0-0-1.eu-west-1.compute.internal"
        );
    }

    #[test]
    fn an_ambiguous_name_contains_a_digest() {
        assert_eq!(object_name("a", "b.c"), "a.b.c");
        assert_eq!(
            object_name("a.b", "c"),
            "a-b-016f3ec9c666b9a369f735364d29fcd6815075149025cca335f0ae487a3c7392.c"
        );
    }

    #[test]
    fn a_long_name_is_truncated_and_contains_a_digest() {
        let node = [
            "n".repeat(63),
            "n".repeat(63),
            "n".repeat(63),
            "n".repeat(61),
        ]
        .join(".");
        let longer = format!("{node}n");

        let names = [object_name("c", &node), object_name("c", &longer)];

        assert!(
            names
                .iter()
                .all(|name| name.len() <= MAX_NAME && name.starts_with("c-"))
        );
        assert_ne!(names[0], names[1]);
    }

    /// Generates valid, invalid and long names, and names that a tenant could choose for an attack.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z0-9]{1,3}([-.][a-z0-9]{1,3}){0,3}",
            "[-.a-zA-Z0-9_é]{0,8}",
            "[a-z]{60,66}",
            "([a-z0-9]{1,63}[.]){3,4}[a-z]{1,63}",
            "[-a-z]{1,4}-[0-9a-f]{64}([.][a-z]{1,3})?",
        ]
    }

    proptest! {
        #[test]
        fn every_record_name_is_a_dns_subdomain(cluster in text(), node in text()) {
            let name = object_name(&cluster, &node);

            prop_assert!(NodeName::parse(&name).is_ok(), "{}", name);
        }

        #[test]
        fn different_cluster_and_node_pairs_have_different_names(pairs in prop::collection::vec((text(), text()), 1..40)) {
            // The pairs also include variants in which the dot is at a different position.
            let moved = pairs.iter().flat_map(|(cluster, node)| {
                let whole = format!("{cluster}.{node}");
                let cuts = whole.match_indices('.');
                let halves = cuts.map(|(at, dot)| (whole.split_at(at), dot));
                halves
                    .map(|((left, right), dot)| (left.to_owned(), right.replacen(dot, "", 1)))
                    .collect::<Vec<_>>()
            });
            let mut known = HashMap::new();
            for pair in pairs.iter().cloned().chain(moved) {
                let name = object_name(&pair.0, &pair.1);
                let other = known.insert(name, pair.clone());
                prop_assert!(other.is_none_or(|other| other == pair));
            }
        }
    }
}
