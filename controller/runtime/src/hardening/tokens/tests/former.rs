//! Tests of tokens that a previous controller process extended, and of the API calls about tokens.

use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Response};

use super::*;
use crate::client::ClusterAccess;

const GRACE: Duration = Duration::from_hours(1);

/// For a page number and the previous calls, the names on a page of a list, and whether another page follows. `None`
/// means that the list fails.
type Page = fn(usize, &[String]) -> Option<(Vec<String>, bool)>;

/// An API server with extended tokens, and the calls that it has answered.
#[derive(Clone)]
struct Server {
    page: Page,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(page: Page) -> Self {
        let calls = Arc::default();
        Self { page, calls }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let access = ClusterAccess::in_memory(move |request| {
            let query = request.uri().query().unwrap_or_default();
            let number = query
                .split('&')
                .find_map(|pair| pair.strip_prefix("continue="));
            let number = number.map_or(0, |number| number.parse().unwrap());
            let path = request.uri().path();
            let name = path.strip_prefix("/api/v1/namespaces/kube-system/secrets/");
            let call = match name {
                Some(name) => format!("{} {name}", request.method()),
                None => format!("list {number}"),
            };
            let selector = "labelSelector=attestation.cluster.x-k8s.io%2Fextended";
            assert!(name.is_some() || query.contains(selector), "{query}");
            let is_patch = request.method() == Method::PATCH;
            let page = (server.page)(number, &server.calls.lock().unwrap());
            server.calls.lock().unwrap().push(call);
            let answer = match (name, page) {
                (Some(_), _) if is_patch => Some(json!({"metadata": {}})),
                (Some(_), _) => {
                    let ends = secret(SECRET_TYPE, Some("1970-01-01T11:00:00Z"));
                    Some(serde_json::from_str(&ends).unwrap())
                }
                (None, Some((names, has_more))) => {
                    let item = |name| json!({"metadata": {"name": name}});
                    let items: Vec<Value> = names.into_iter().map(item).collect();
                    let rest = has_more.then(|| (number + 1).to_string());
                    Some(json!({"metadata": {"continue": rest}, "items": items}))
                }
                (None, None) => None,
            };
            async move {
                let status = if answer.is_some() { 200 } else { 403 };
                let body = answer.unwrap_or_default().to_string();
                let answer = Response::builder().status(status);
                answer.body(Full::new(Bytes::from(body))).unwrap()
            }
        });
        access.client().clone()
    }

    fn calls(&self, prefix: &str) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        let calls = calls.iter().filter(|call| call.starts_with(prefix));
        calls.cloned().collect()
    }
}

fn token(id: &str) -> TokenId {
    TokenId::parse(id).unwrap()
}

fn time(hours: u64) -> SystemTime {
    at(hours).into()
}

#[tokio::test(start_paused = true)]
async fn a_previously_extended_token_expires_unless_it_is_still_needed() {
    let server = Server::new(|number, _| {
        let names = match number {
            0 => ["bootstrap-token-aaaaaa", "bootstrap-token-", "other"],
            _ => ["bootstrap-token-bbbbbb", "bootstrap-token-A", "cccccc"],
        };
        Some((names.map(ToOwned::to_owned).into(), number == 0))
    });
    let client = server.client();
    let mut tokens = Tokens::new(GRACE);
    let wanted = [token("aaaaaa")].into();
    let begin = Duration::from_mins(5);
    for _ in 0..2 {
        let found = tokens.find_former(&client, &wanted, time(10), begin).await;
        found.unwrap();
    }
    assert_eq!(server.calls("list"), ["list 0", "list 1"], "once");

    let almost = GRACE.saturating_sub(Duration::from_secs(1));
    for (elapsed, ended) in [
        (begin + almost, vec![]),
        (begin + GRACE, vec![token("bbbbbb")]),
        (begin + 2 * GRACE, vec![]),
    ] {
        let kept = tokens.keep(&client, &wanted, time(10), elapsed).await;
        assert_eq!(kept.unwrap().ended, ended, "{elapsed:?}");
    }
    assert_eq!(
        server.calls("PATCH"),
        [
            "PATCH bootstrap-token-aaaaaa",
            "PATCH bootstrap-token-bbbbbb"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn without_enforcement_extended_tokens_end_when_machines_have_joined() {
    let server = Server::new(|_, _| {
        let names = ["bootstrap-token-aaaaaa", "bootstrap-token-bbbbbb"];
        Some((names.map(ToOwned::to_owned).into(), false))
    });
    let client = server.client();
    let mut tokens = Tokens::new(GRACE);
    // The Machine of `bbbbbb` has a Node from the start, and the Machine of `aaaaaa` gets a Node later.
    let (joining, none) = (BTreeSet::from([token("aaaaaa")]), BTreeSet::new());
    let found = tokens.find_former(&client, &joining, time(10), Duration::ZERO);
    found.await.unwrap();

    for (joining, rounds, ended) in [
        (&joining, 0, None),
        (&joining, 1, Some("bbbbbb")),
        (&joining, 2, None),
        (&none, 3, None),
        (&none, 4, Some("aaaaaa")),
    ] {
        let kept = tokens.release(&client, joining, time(10), rounds * GRACE);
        let ended = ended.map(token).into_iter().collect();
        let extended = Vec::new();
        assert_eq!(
            kept.await.unwrap(),
            TokenChanges { extended, ended },
            "{rounds}"
        );
    }
    assert_eq!(
        server.calls("PATCH"),
        [
            "PATCH bootstrap-token-bbbbbb",
            "PATCH bootstrap-token-aaaaaa"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_of_extended_tokens_that_fails_is_read_again() {
    let server = Server::new(|_, calls| {
        let names = vec!["bootstrap-token-aaaaaa".to_owned()];
        (!calls.is_empty()).then_some((names, false))
    });
    let client = server.client();
    let mut tokens = Tokens::new(GRACE);
    let none = BTreeSet::new();
    let failed = tokens.find_former(&client, &none, time(10), GRACE).await;
    failed.unwrap_err();
    assert!(tokens.known.is_empty());

    let found = tokens.find_former(&client, &none, time(10), GRACE).await;
    found.unwrap();
    assert!(tokens.known.contains_key(&token("aaaaaa")));
}

#[tokio::test(start_paused = true)]
async fn endless_extended_tokens_use_bounded_memory_and_time() {
    // Each page contains more names than requested, and is followed by another page.
    let server = Server::new(|number, _| {
        let names = (0..2 * PAGE).map(|one| format!("bootstrap-token-{number:02}{one:04}"));
        Some((names.collect(), true))
    });
    let client = server.client();
    let mut tokens = Tokens::new(GRACE);
    let none = BTreeSet::new();
    let found = tokens.find_former(&client, &none, time(10), GRACE).await;

    found.unwrap();
    assert_eq!(tokens.known.len(), MAX_FORMER);
    assert_eq!(server.calls("list").len(), MAX_PAGES);
}

#[tokio::test(start_paused = true)]
async fn extended_tokens_beyond_the_memory_of_their_cluster_are_left_out() {
    let server = Server::new(|number, _| {
        let names = (0..PAGE).map(|one| format!("bootstrap-token-{number:02}{one:04}"));
        Some((names.collect(), number == 0))
    });
    let client = server.client();
    let share = Share::alone(OWN_MEMORY);
    let mut tokens = Tokens::new(GRACE).within(&share);
    let none = BTreeSet::new();
    let found = tokens.find_former(&client, &none, time(10), Duration::ZERO);
    found.await.unwrap();

    assert_eq!(tokens.known.len(), OWN_MEMORY / TOKEN_LEN);
    assert!(!share.holding().resize(1));

    let ended = tokens.keep(&client, &none, time(10), GRACE).await.unwrap();
    assert_eq!(ended.ended.len(), OWN_MEMORY / TOKEN_LEN);
    assert!(share.holding().resize(OWN_MEMORY));
    let lists = server.calls("list").len();

    assert!(tokens.lists_again());
    let found = tokens.find_former(&client, &none, time(10), Duration::ZERO);
    found.await.unwrap();
    assert!(server.calls("list").len() > lists);
}

#[tokio::test(start_paused = true)]
async fn an_extended_pool_token_is_not_read_again_for_a_day() {
    let server = Server::new(|_, _| Some((Vec::new(), false)));
    let client = server.client();
    let mut tokens = Tokens::new(GRACE);
    let wanted = BTreeSet::from([token("aaaaaa"), token("bbbbbb")]);
    tokens.set_of_pools([token("aaaaaa")].into());

    for (hour, extended) in [
        (10, vec![token("aaaaaa"), token("bbbbbb")]),
        (30, vec![token("bbbbbb")]),
    ] {
        let kept = tokens.keep(&client, &wanted, time(hour), GRACE).await;
        assert_eq!(kept.unwrap().extended, extended, "{hour}");
    }
    assert_eq!(server.calls("GET bootstrap-token-aaaaaa").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_token_is_expired_while_other_needed_tokens_are_unknown() {
    let server = Server::new(|_, _| Some((Vec::new(), false)));
    let client = server.client();
    let mut tokens = Tokens::new(GRACE);
    let both = BTreeSet::from([token("aaaaaa"), token("bbbbbb")]);
    let kept = tokens.keep(&client, &both, time(10), Duration::ZERO);
    assert_eq!(kept.await.unwrap().extended.len(), 2);
    let known = BTreeSet::from([token("aaaaaa")]);

    let kept = tokens.extend(&client, &known, time(30), GRACE).await;

    let kept = kept.unwrap();
    assert_eq!(kept.extended, [token("aaaaaa")]);
    assert!(kept.ended.is_empty());
    for (elapsed, ended) in [(2 * GRACE, vec![]), (3 * GRACE, vec![token("bbbbbb")])] {
        let kept = tokens.keep(&client, &known, time(30), elapsed).await;
        assert_eq!(kept.unwrap().ended, ended, "{elapsed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_tokens_without_a_known_owner_wait_for_an_unknown_owner() {
    let server = Server::new(|_, _| {
        let names = ["aaaaaa", "bbbbbb", "cccccc"].map(|token| format!("bootstrap-token-{token}"));
        Some((names.into(), false))
    });
    let client = server.client();
    let none = BTreeSet::new();
    let ended = |extends: bool| {
        let (client, none) = (&client, &none);
        async move {
            let mut tokens = Tokens::new(GRACE);
            let found = tokens.find_former(client, none, time(10), Duration::ZERO);
            found.await.unwrap();
            let mut rounds = Vec::new();
            // `aaaaaa` belongs to a pool or to a Machine that has joined, and `bbbbbb` had an owner before.
            tokens.set_owned(&[token("bbbbbb")], false);
            for (round, owned, are_all) in [
                (0, vec!["aaaaaa"], false),
                (1, vec!["aaaaaa"], false),
                (2, vec![], false),
                (3, vec![], true),
                (4, vec![], true),
            ] {
                let owned: Vec<_> = owned.into_iter().map(token).collect();
                tokens.set_owned(&owned, are_all);
                let now = (time(10), round * GRACE);
                let kept = if extends {
                    tokens.keep(client, none, now.0, now.1).await
                } else {
                    tokens.release(client, none, now.0, now.1).await
                };
                rounds.push(kept.unwrap().ended);
            }
            rounds
        }
    };
    let expected = [
        vec![],
        vec![token("aaaaaa"), token("bbbbbb")],
        vec![],
        vec![],
        vec![token("cccccc")],
    ];
    for extends in [true, false] {
        assert_eq!(ended(extends).await, expected, "{extends}");
    }
}
