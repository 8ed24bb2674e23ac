use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::client::Body;
use node_attestation_core::identifiers::RecordUid;
use node_attestation_core::ledger::{Record, Stored, Tombstone, TombstoneReason, Version};
use node_attestation_core::testing::records::{at, claim};
use serde_json::json;

use super::*;
use crate::capi::{ObjectKey, objects_with_tokens};

/// An API server with this number of pages, each of which contains one Node.
fn pages(count: usize) -> Client {
    pages_of(count, "n")
}

/// Like [`pages`], but with this prefix in the Node names.
fn pages_of(count: usize, prefix: &'static str) -> Client {
    full_pages_of(count, 1, prefix)
}

/// Like [`pages_of`], but with this number of Nodes on each page.
fn full_pages_of(count: usize, nodes: usize, prefix: &'static str) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        let query = request.uri().query().unwrap_or_default();
        let token = query
            .split('&')
            .find_map(|one| one.strip_prefix("continue="));
        let page: usize = token.map_or(1, |token| token.parse().unwrap());
        let next = if page < count {
            (page + 1).to_string()
        } else {
            String::new()
        };
        assert!(page <= MAX_PAGES, "page {page} is asked for");
        let name = |node: usize| match node {
            0 => format!("{prefix}{page}"),
            _ => format!("{prefix}{page}-{node}"),
        };
        let item = |node| {
            json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": name(node)},
            })
        };
        let items: Vec<_> = (0..nodes).map(item).collect();
        let list = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
            "metadata": {"resourceVersion": "1", "continue": next},
            "items": items,
        });
        let body = Full::new(Bytes::from(list.to_string()));
        Ok::<_, Infallible>(Response::new(body))
    });
    Client::new(service, "default")
}

/// Selects the names that `wanted` accepts. The Nodes in `retired` have a retired record.
fn selected(
    wanted: fn(&str) -> bool,
    retired: &'static [&'static str],
) -> impl Fn(Vec<String>) -> Ready<Result<Unaccounted, PartError>> {
    move |names| {
        let names = names.into_iter().filter(|name| wanted(name));
        let names = names.map(|name| {
            let is_retired = retired.contains(&name.as_str());
            (name, is_retired)
        });
        ready(Ok(names.collect()))
    }
}

#[tokio::test]
async fn an_endless_list_of_nodes_fails_after_500_pages() {
    let two = nodes_named(&pages(2), false, selected(|name| name == "n2", &[]))
        .await
        .unwrap();
    assert_eq!(two.into_iter().collect::<Vec<_>>(), ["n2"]);

    let error = nodes_named(&pages(usize::MAX), false, selected(|_| false, &[]))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "their list has more than 500 pages");
}

#[tokio::test]
async fn a_node_with_a_name_that_no_api_server_accepts_is_ignored() {
    let longest: &str = Box::leak("n".repeat(MAX_NAME_LEN - 1).into_boxed_str());
    // The names on the first pages have one digit, and the names from the tenth page on have two digits.
    let client = pages_of(12, longest);
    let found = nodes_named(&client, false, selected(|_| true, &[]));

    assert_eq!(found.await.unwrap().len(), 9);
}

#[tokio::test]
async fn a_list_of_many_nodes_keeps_1000_names_and_the_retired_ones() {
    let client = full_pages_of(50, 100, "n");
    let retired = || selected(|_| true, &["n49", "n50-99", "absent"]);

    let found = nodes_named(&client, true, retired()).await;

    let found = found.unwrap();
    assert_eq!(found.len(), MAX_WITHOUT + 2);
    assert!(found.contains("n49") && found.contains("n50-99"));
    let few = nodes_named(&client, false, retired()).await;
    assert_eq!(few.unwrap().len(), MAX_WITHOUT);
}

/// The records of this node: a live record, or a retired record.
fn records_of(node: &str, tombstone: Option<Tombstone>) -> AllRecords {
    let mut record = Record::first(
        &claim("m2", node, 1, 0),
        RecordUid::new([7; 16]),
        None,
        at(0),
    );
    record.tombstone = tombstone;
    let version = Version::new("1");
    AllRecords::from([Arc::new(Stored { record, version })])
}

type Names = &'static [&'static str];

#[tokio::test]
async fn nodes_without_a_live_record_are_exempt_or_cannot_renew() {
    // Cluster API has found the Node m2, which belongs to one of the two Machines.
    let key = ObjectKey::new("tenant-a", "prod-1");
    let inventory = CapiInventory::new(objects_with_tokens(), key);
    let retired = Tombstone {
        since: at(1),
        reason: TombstoneReason::MachineGone,
        until: at(9),
    };
    let none = Some(AllRecords::from([]));
    let live = Some(records_of("m2", None));
    let retired = Some(records_of("m2", Some(retired)));
    let cases: [(Names, &Option<AllRecords>, Names, Names); 7] = [
        (&[], &none, &[], &["m2"]),
        (&[], &retired, &[], &["m2"]),
        (&[], &live, &[], &[]),
        (&["windows-1"], &none, &["windows-1"], &["m2"]),
        (&["m2", "windows-1"], &none, &["m2", "windows-1"], &[]),
        (&["m2", "windows-1"], &live, &["windows-1"], &[]),
        // Until the records are known, no Node counts as a Node without a record.
        (&["m2"], &None, &["m2"], &[]),
    ];
    for (listed, records, exempt, of_machines) in cases {
        let listed = listed.iter().map(|name| NodeName::parse(name).unwrap());

        let found = Unrecorded::of(&listed.collect(), &inventory, records.as_ref()).await;

        let still: Vec<_> = found.exempt.iter().map(NodeName::as_str).collect();
        assert_eq!(still, exempt, "{found:?}");
        let others: Vec<_> = found.of_machines.iter().map(String::as_str).collect();
        assert_eq!(others, of_machines, "{found:?}");
    }
}
