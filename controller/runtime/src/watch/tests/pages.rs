//! Tests of lists with objects of any size.

use std::collections::BTreeSet;

use kube::api::ListParams;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::unshared::Unshared;

use super::*;
use crate::client::ClusterAccess;

/// The number of objects, each of which has 100 labels.
const OBJECTS: usize = 2000;

/// More labels than an object can have in a list.
const TOO_MANY: usize = 70_000;

fn with_labels(name: usize, labels: usize) -> String {
    let labels: Vec<_> = (0..labels)
        .map(|number| format!(r#""l{number}":"""#))
        .collect();
    let labels = labels.join(",");
    // The members are in the same order as in a custom resource.
    format!(r#"{{"metadata":{{"labels":{{{labels}}},"name":"{name}"}}}}"#)
}

/// The result of a list.
#[derive(Debug, Default)]
struct Listed {
    /// The requested limit of each page.
    limits: Vec<u32>,
    /// The number of lists that started.
    begun: usize,
    readable: Vec<String>,
    unreadable: Vec<String>,
}

/// Lists the objects. The objects in `large` have this number of labels.
async fn listed(large: &[usize], labels: usize) -> Listed {
    let large: BTreeSet<usize> = large.iter().copied().collect();
    let objects: Arc<Vec<String>> = Arc::new(
        (0..OBJECTS)
            .map(|name| with_labels(name, if large.contains(&name) { labels } else { 100 }))
            .collect(),
    );
    let limits: Arc<Unshared<Vec<u32>>> = Arc::default();
    let asked = limits.clone();
    let access = ClusterAccess::in_memory(move |request: Request<Body>| {
        let number = |key: &str| {
            let mut pairs = request.uri().query().unwrap_or_default().split('&');
            let value = pairs.find_map(|pair| pair.strip_prefix(key));
            value.map_or(0, |value| value.parse::<usize>().unwrap())
        };
        let (first, limit) = (number("continue="), number("limit="));
        asked.lock().push(limit.try_into().unwrap());
        let next = (first + limit).min(OBJECTS);
        let more = if next < OBJECTS {
            next.to_string()
        } else {
            String::new()
        };
        let items = objects[first..next].join(",");
        let metadata = format!(r#"{{"resourceVersion":"1","continue":"{more}"}}"#);
        let list = format!(r#"{{"metadata":{metadata},"items":[{items}]}}"#);
        let answer = Full::new(Bytes::from(list));
        async move { Response::new(answer) }
    });
    let api: Api<Lenient<Node>> = Api::all(access.client().clone());
    let config = watcher::Config::default();
    let relist = Arc::new(Notify::new());
    let heard = WatchMetrics::default();
    let events = in_smaller_pages(api, config, MANAGEMENT_PAGE_SIZE, relist, heard);
    let mut events = std::pin::pin!(events);
    let mut listed = Listed::default();
    loop {
        match events.next().await.unwrap().unwrap() {
            Event::Init => listed.begun += 1,
            Event::InitApply(seen) => {
                let name = seen.metadata.name.unwrap();
                if seen.object.is_ok() {
                    listed.readable.push(name);
                } else {
                    listed.unreadable.push(name);
                }
            }
            Event::InitDone => break,
            Event::Apply(_) | Event::Delete(_) => panic!("it lists"),
        }
    }
    listed.limits.clone_from(&limits.lock());
    listed
}

fn names(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    let names = numbers.into_iter().map(|number| number.to_string());
    names.collect()
}

#[tokio::test(start_paused = true)]
async fn four_large_objects_among_2000_cause_only_a_few_more_pages() {
    assert_eq!(listed(&[], 0).await.limits, [500; 4]);

    for large in [[0, 1, 2, 3], [496, 497, 498, 499], [3, 600, 1200, 1999]] {
        for (labels, is_readable) in [(60_000, true), (TOO_MANY, false)] {
            let found = listed(&large, labels).await;

            let calls = found.limits.len();
            assert!(calls <= 4 + 10, "{large:?}: {:?}", found.limits);
            assert_eq!(found.begun, 1, "the list continues");
            let is_large = |number: &usize| large.contains(number);
            if is_readable {
                assert_eq!(found.readable, names(0..OBJECTS));
            } else {
                assert_eq!(found.unreadable, names(large));
                let others = (0..OBJECTS).filter(|number| !is_large(number));
                assert_eq!(found.readable, names(others));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_page_size_recovers_after_large_objects() {
    let large: Vec<usize> = (0..40).collect();

    let found = listed(&large, TOO_MANY).await;

    assert_eq!(found.unreadable, names(0..40));
    assert_eq!(found.readable, names(40..OBJECTS));
    let full = found.limits.iter().filter(|limit| **limit == 500).count();
    assert!(full >= 4, "{:?}", found.limits);
    assert!(found.limits.len() <= 30, "{:?}", found.limits);
}

#[tokio::test(start_paused = true)]
async fn a_truncated_allow_list_is_unreadable() {
    let entry =
        |number: usize| json!({"machine": format!("m{number}"), "ekSha256": "0".repeat(64)});
    let allowed: Vec<_> = (0..512).map(entry).collect();
    let spec = json!({
        "clusterName": "a", "authorizedAttestors": ["tpm"],
        "tpm": {"endorsementKeys": {"allowList": allowed}},
    });
    for (labels, is_whole) in [(60_000, true), (64_900, false)] {
        let labels: serde_json::Map<_, _> = (0..labels)
            .map(|number| (number.to_string(), json!("")))
            .collect();
        let metadata = json!({"name": "a", "namespace": "b", "labels": labels});
        let object = json!({"metadata": metadata, "spec": spec});
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": [object]});
        let list = Bytes::from(list.to_string());
        let access = ClusterAccess::in_memory(move |_| {
            let answer = Full::new(list.clone());
            async move { Response::new(answer) }
        });
        let api: Api<Lenient<KubeletAuthentication>> = Api::all(access.client().clone());

        let all = all_of(&api, ListParams::default()).await.unwrap();

        assert_eq!(all[0].metadata.name.as_deref(), Some("a"));
        match &all[0].object {
            Ok(read) => {
                assert!(is_whole);
                let tpm = read.spec.tpm.as_ref().unwrap();
                assert_eq!(tpm.endorsement_keys.allow_list.len(), 512);
            }
            Err(error) => {
                assert!(!is_whole);
                assert!(error.to_string().contains("too many values"), "{error}");
                assert_eq!(all[0].metadata.labels, None, "they are incomplete");
            }
        }
    }
}
