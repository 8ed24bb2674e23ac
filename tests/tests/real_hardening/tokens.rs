//! Tests of the lifetime of bootstrap tokens.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
// The tests use only this clock.
use kubelet_authenticator_test_support::clock::since_epoch as elapsed;
use kubelet_authenticator_test_support::control_plane::Controllers;
use node_attestation_core::identifiers::TokenId;
use node_attestation_runtime::hardening::tokens::{TTL, Tokens};
use serde_json::{Value, json};

use crate::bed::{Bed, SECRET};

/// The remaining lifetime of a token after its machine is deleted.
const GRACE: Duration = Duration::from_mins(10);

/// An arbitrary time, because the tests do not use any other clock.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(20 * 365 * 24 * 3)
}

fn text(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap().to_string()
}

fn id(token: &str) -> TokenId {
    TokenId::parse(token).unwrap()
}

/// Adds a Secret in the format that Cluster API's bootstrap provider uses.
fn add(bed: &Bed, token: &str, expiration: Option<SystemTime>) {
    let mut data = json!({
        "token-id": token, "token-secret": SECRET,
        "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
    });
    if let Some(expiration) = expiration {
        data["expiration"] = text(expiration).into();
    }
    bed.cluster.kubectl().apply_object(&json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": format!("bootstrap-token-{token}"), "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": data,
    }));
}

fn secret(bed: &Bed, token: &str) -> Value {
    let name = format!("bootstrap-token-{token}");
    let kubectl = bed.cluster.kubectl();
    kubectl.json(["get", "secret", "-n", "kube-system", &name])
}

fn expiration(secret: &Value) -> Option<String> {
    let encoded = secret["data"]["expiration"].as_str()?;
    Some(String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap())
}

#[test]
fn only_a_needed_token_that_expires_soon_is_extended() {
    let bed = Bed::start(Controllers::None, &[]);
    let minute = Duration::from_mins(1);
    add(&bed, "wanted", Some(now() + 15 * minute));
    add(&bed, "forget", Some(now() + 15 * minute));
    add(&bed, "always", None);
    add(&bed, "longer", Some(now() + 100 * TTL));
    let untouched = ["forget", "always", "longer"].map(|token| secret(&bed, token));
    let wanted = BTreeSet::from(["wanted", "always", "longer", "absent"].map(id));
    let mut tokens = Tokens::new(GRACE);
    let mut keep = |now| {
        bed.run(tokens.keep(bed.client(), &wanted, now, elapsed(now)))
            .unwrap()
    };

    let kept = keep(now());

    assert_eq!(kept.extended, [id("wanted")]);
    let extended = secret(&bed, "wanted");
    assert_eq!(expiration(&extended), Some(text(now() + TTL)));
    let half = |secret: &Value| secret["data"]["token-secret"].clone();
    assert_eq!(half(&extended), STANDARD.encode(SECRET));
    assert_eq!(keep(now() + TTL / 4).extended, []);
    assert_eq!(secret(&bed, "wanted"), extended);

    let later = now() + TTL / 2 + minute;
    assert_eq!(keep(later).extended, [id("wanted")]);
    assert_eq!(expiration(&secret(&bed, "wanted")), Some(text(later + TTL)));
    let now_untouched = ["forget", "always", "longer"].map(|token| secret(&bed, token));
    assert_eq!(now_untouched, untouched);
    let names = bed.cluster.kubectl().ok([
        "get",
        "secrets",
        "-n",
        "kube-system",
        "-o",
        "name",
        "--field-selector=type=bootstrap.kubernetes.io/token",
    ]);
    assert_eq!(names.lines().count(), 4, "{names}");
}

#[test]
fn an_extended_token_expires_after_its_machine_is_deleted() {
    let bed = Bed::start(Controllers::None, &[]);
    add(&bed, "leaves", Some(now()));
    add(&bed, "return", Some(now()));
    add(&bed, "theirs", Some(now() + 100 * TTL));
    let mut tokens = Tokens::new(GRACE);
    let all = BTreeSet::from(["leaves", "return", "theirs"].map(id));
    let (none, one) = (BTreeSet::new(), BTreeSet::from([id("return")]));
    let mut keep = |wanted, now| {
        bed.run(tokens.keep(bed.client(), wanted, now, elapsed(now)))
            .unwrap()
    };
    assert_eq!(keep(&all, now()).extended, [id("leaves"), id("return")]);
    let [extended, returned, theirs] =
        ["leaves", "return", "theirs"].map(|token| secret(&bed, token));

    let second = Duration::from_secs(1);
    assert_eq!(keep(&none, now() + second).ended, []);
    assert_eq!(keep(&one, now() + 2 * second).ended, []);
    assert_eq!(keep(&none, now() + GRACE).ended, []);
    assert_eq!(secret(&bed, "leaves"), extended);
    let later = now() + GRACE + second;

    assert_eq!(keep(&none, later).ended, [id("leaves")]);

    assert_eq!(expiration(&secret(&bed, "leaves")), Some(text(later)));
    assert_eq!(secret(&bed, "return"), returned);
    assert_eq!(secret(&bed, "theirs"), theirs);
    // The remaining lifetime starts again when the token is needed again.
    assert_eq!(keep(&none, now() + 2 * GRACE - second).ended, []);
    assert_eq!(keep(&none, now() + 2 * GRACE).ended, [id("return")]);
    assert_eq!(keep(&none, now() + 2 * GRACE).ended, []);
}

#[test]
fn a_fast_wall_clock_does_not_expire_tokens() {
    let bed = Bed::start(Controllers::None, &[]);
    add(&bed, "leaves", Some(now()));
    let mut tokens = Tokens::new(GRACE);
    let mut keep = |wanted: &BTreeSet<_>, now, elapsed| {
        let kept = tokens.keep(bed.client(), wanted, now, elapsed);
        bed.run(kept).unwrap().ended
    };
    let (second, none) = (Duration::from_secs(1), BTreeSet::new());
    keep(&BTreeSet::from([id("leaves")]), now(), second);
    assert_eq!(keep(&none, now(), second), []);

    assert_eq!(keep(&none, now() + 2 * GRACE, 2 * second), []);
    let later = keep(&none, now() + 2 * GRACE, second + GRACE);
    assert_eq!(later, [id("leaves")]);
}

#[test]
fn a_token_extended_by_a_previous_controller_expires_with_its_machine() {
    let bed = Bed::start(Controllers::None, &[]);
    for token in ["leaves", "stays1", "theirs"] {
        add(&bed, token, Some(now()));
    }
    let wanted =
        |tokens: &[&str]| -> BTreeSet<_> { tokens.iter().map(|token| id(token)).collect() };
    let both = wanted(&["leaves", "stays1"]);
    let mut former = Tokens::new(GRACE);
    bed.run(former.keep(bed.client(), &both, now(), elapsed(now())))
        .unwrap();
    let theirs = secret(&bed, "theirs");
    let mut tokens = Tokens::new(GRACE);
    let mut keep = |wanted, now| {
        bed.run(async {
            let kept = tokens
                .keep(bed.client(), wanted, now, elapsed(now))
                .await
                .unwrap();
            let found = tokens
                .find_former(bed.client(), wanted, now, elapsed(now))
                .await;
            found.unwrap();
            kept
        })
    };
    let second = Duration::from_secs(1);

    let stays = wanted(&["stays1"]);
    assert_eq!(keep(&stays, now() + second).ended, []);
    let later = now() + GRACE + second;
    let kept = keep(&stays, later);

    assert_eq!(kept.ended, [id("leaves")]);
    assert_eq!(kept.extended, []);
    let ended = secret(&bed, "leaves");
    assert_eq!(expiration(&ended), Some(text(later)));
    assert!(ended["metadata"]["labels"].is_null(), "{ended:#}");
    // The token `stays1` now belongs to the next leader, which ends the token after the grace period.
    let none = wanted(&[]);
    assert_eq!(keep(&none, later).ended, []);
    assert_eq!(keep(&none, later + GRACE).ended, [id("stays1")]);
    assert_eq!(secret(&bed, "theirs"), theirs);
}

#[test]
fn tokens_are_managed_without_permission_to_list_secrets() {
    let bed = Bed::start(Controllers::None, &[]);
    let rules = json!({"rules": [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "patch"]},
    ]});
    let role = [
        "role",
        "node-attestation-controller-tokens",
        "-n",
        "kube-system",
    ];
    bed.cluster.kubectl().patch(&role, &rules);
    add(&bed, "leaves", Some(now()));
    let wanted = BTreeSet::from([id("leaves")]);
    let mut tokens = Tokens::new(Duration::ZERO);

    let kept = bed.run(tokens.keep(bed.client(), &wanted, now(), elapsed(now())));

    assert_eq!(kept.unwrap().extended, [id("leaves")]);
    let found = bed.run(tokens.find_former(bed.client(), &wanted, now(), elapsed(now())));
    let refused = found.unwrap_err().to_string();
    assert!(refused.contains("list secrets"), "{refused}");
    let later = now() + Duration::from_secs(1);
    let kept = bed.run(tokens.keep(bed.client(), &BTreeSet::new(), later, elapsed(later)));
    assert_eq!(kept.unwrap().ended, [id("leaves")]);
}
