//! Tests for C11: repeated signatures.

use std::collections::BTreeMap;

use kubelet_authenticator_test_support::sts::{Fault, Times};
use node_attestation_runtime::shared::Lock;
use node_attestation_runtime::shared::testing::most_visited;

use super::super::refusal_cache::Refused;
use super::super::replay::{LIMITS, Owner, ReplayCache, ReplayCheck, ReplayLimits};
use super::super::request::{Call, rebuild};
use super::fixture::*;

#[tokio::test]
async fn a_signature_confirmed_for_another_key_is_denied_as_a_replay() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    bed.show(&proof, &node).await.unwrap();
    let attacker = Node {
        spki: b"the attacker's key".to_vec(),
        ..node.clone()
    };

    let denied = denial(bed.show(&proof, &attacker).await);

    assert_eq!(denied, AwsDenial::EvidenceReplayed);
    assert_eq!(bed.outcomes(), ["OK"], "nobody was asked");
}

#[tokio::test]
async fn a_repeated_signature_with_the_same_key_causes_no_second_call() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    bed.show(&proof, &node).await.unwrap();

    let later = now() + minutes(13);
    bed.show_at(&proof, &node, now(), later).await.unwrap();

    assert_eq!(bed.outcomes(), ["OK"]);
    let late = now() + minutes(15);
    assert_expired(&bed.show_at(&proof, &node, now(), late).await);
}

#[tokio::test]
async fn the_same_key_with_other_claims_is_refused_by_sts() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    bed.show(&proof, &node).await.unwrap();
    let mut renamed = node;
    renamed.document.digest = [8; 32];

    assert_eq!(denial(bed.show(&proof, &renamed).await), mismatch());
    assert_eq!(bed.outcomes(), ["OK", "SignatureDoesNotMatch"]);
}

#[tokio::test]
async fn a_copied_signature_does_not_block_the_original_request() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    let attacker = Node {
        spki: b"the attacker's key".to_vec(),
        ..node.clone()
    };

    assert_eq!(denial(bed.show(&proof, &attacker).await), mismatch());

    bed.show(&proof, &node).await.unwrap();
}

fn owner(instance: &str) -> Owner<'_> {
    Owner {
        namespace: "tenant-a",
        cluster: "one",
        instance,
    }
}

/// A call with this key, from a caller that STS has confirmed.
fn confirmed(node: &Node) -> (Call, KeyDigest) {
    let host = EndpointHost::sts(REGION).unwrap();
    let call = rebuild(&node.proof(), &node.binding(), &host).unwrap();
    (call, KeyDigest::of(&node.spki))
}

#[tokio::test]
async fn a_full_replay_cache_delays_requests_and_keeps_its_entries() {
    let bed = Bed::start();
    let node = bed.instance();
    bed.verify(&node).await.unwrap();
    let other_instance = bed.node(Principal::instance(ACCOUNT, OTHER_INSTANCE));
    let until = now() + minutes(15);
    let signed = |second: usize| {
        let mut node = node.clone();
        node.date = format!("20260101T1200{second:02}Z");
        confirmed(&node)
    };
    for (all, of_instance) in [(4, 9), (9, 2)] {
        let memory = ReplayCache::with_limits(ReplayLimits {
            all,
            own_of_cluster: 0,
            of_instance,
            ..LIMITS
        });
        for second in [1, 2] {
            let (call, key) = signed(second);
            assert_eq!(
                memory.look(&call, &key, owner(INSTANCE), now()),
                ReplayCheck::New
            );
            let remembered = memory.remember(&call, key, owner(INSTANCE), until);
            assert_eq!(remembered, ReplayCheck::New);
        }
        let (third, key) = signed(3);

        assert_eq!(
            memory.look(&third, &key, owner(INSTANCE), now()),
            ReplayCheck::Full
        );
        assert_eq!(
            memory.remember(&third, key, owner(INSTANCE), until),
            ReplayCheck::Full
        );

        // A request from another instance waits only if its namespace's half of the cache is full.
        let (call, key) = confirmed(&other_instance);
        let expected = if all == 4 {
            ReplayCheck::Full
        } else {
            ReplayCheck::New
        };
        assert_eq!(
            memory.look(&call, &key, owner(OTHER_INSTANCE), now()),
            expected
        );

        // The cache still recognizes existing signatures, for their own key and for another key.
        let (first, key) = signed(1);
        let known = memory.look(&first, &key, owner(INSTANCE), until);
        assert_eq!(known, ReplayCheck::Confirmed);
        let other_key = KeyDigest::of(b"another");
        let known = memory.look(&first, &other_key, owner(INSTANCE), until);
        assert_eq!(known, ReplayCheck::AnotherKey);
        assert_eq!(
            memory.remember(&first, other_key, owner(INSTANCE), until),
            ReplayCheck::AnotherKey
        );

        // After the expiry of a signature, there is space again.
        let after = until + Duration::from_secs(1);
        let (third, key) = signed(3);
        assert_eq!(
            memory.look(&third, &key, owner(INSTANCE), after),
            ReplayCheck::New
        );
        assert_eq!(
            memory.remember(&third, key, owner(INSTANCE), after),
            ReplayCheck::New
        );

        // Removed signatures leave no data in the cache.
        let empty = after + Duration::from_secs(1);
        assert_eq!(
            memory.look(&first, &other_key, owner(INSTANCE), empty),
            ReplayCheck::New
        );
        assert!(!memory.shown().contains(INSTANCE));
    }
}

#[tokio::test]
async fn a_request_waits_while_the_replay_cache_is_full() {
    let mut bed = Bed::start();
    bed.verifier.signatures = ReplayCache::with_limits(ReplayLimits {
        all: 0,
        own_of_cluster: 0,
        ..LIMITS
    });
    let node = bed.instance();

    let words = outage(bed.verify(&node).await);

    assert!(words.contains("too many signatures"), "{words}");
    assert_eq!(bed.outcomes(), [""; 0]);
}

#[tokio::test]
async fn one_signature_for_two_concurrent_keys_is_denied_as_a_replay() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    let other = Node {
        spki: b"another key".to_vec(),
        ..node.clone()
    };
    // A real STS does not send this answer.
    let body = format!(
        "{{\"GetCallerIdentityResponse\":{{\"GetCallerIdentityResult\":{{\
         \"Account\":\"{ACCOUNT}\",\
         \"Arn\":\"arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}\",\
         \"UserId\":\"{ACCOUNT}:aws:ec2-instance:{INSTANCE}\"}}}}}}"
    );
    bed.service.inject(Times::always(), Fault::body(body));

    let (one, two) = tokio::join!(bed.show(&proof, &node), bed.show(&proof, &other));

    assert_eq!(bed.outcomes().len(), 2, "both were asked about");
    let (confirmed, refused) = if one.is_ok() { (one, two) } else { (two, one) };
    confirmed.unwrap();
    assert_eq!(denial(refused), AwsDenial::EvidenceReplayed);
}

#[tokio::test]
async fn a_cached_call_is_identified_by_all_its_fields() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    let host = EndpointHost::sts(REGION).unwrap();
    let call = rebuild(&proof, &node.binding(), &host).unwrap();
    let with = |region: &str, id: &str, token: &str, date: &str, signature: &str| {
        let proof = Proof::new(ProofFields {
            region: region.to_owned(),
            access_key_id: id.to_owned(),
            session_token: token.to_owned(),
            amz_date: date.to_owned(),
            signature: signature.to_owned(),
        });
        rebuild(&proof.unwrap(), &node.binding(), &host).unwrap()
    };
    let (id, token, signature) = (&proof.access_key_id, &proof.session_token, &proof.signature);
    let elsewhere = EndpointHost::sts("eu-west-2").unwrap();
    let mut of_another_document = node.clone();
    of_another_document.document.digest = [8; 32];
    let same_signature = [
        with(REGION, id, "dG9rZW4=", NOON, signature),
        with(REGION, id, token, "20260101T120001Z", signature),
        rebuild(&proof, &node.binding(), &elsewhere).unwrap(),
        rebuild(&proof, &of_another_document.binding(), &host).unwrap(),
    ];
    // The scope of a signature consists of its key, day and region.
    let another_signature = [
        with(REGION, id, token, NOON, &"0".repeat(64)),
        with(REGION, "ASIAAAAAAAAAAAAAAAAA", token, NOON, signature),
        with(REGION, id, token, "20260102T120000Z", signature),
        with("eu-west-2", id, token, NOON, signature),
    ];

    for other in &same_signature {
        assert_eq!(other.signature, call.signature);
        assert_ne!(other.content, call.content);
    }
    for other in &another_signature {
        assert_ne!(other.signature, call.signature);
        assert_ne!(other.content, call.content);
    }
    let again = rebuild(&proof, &node.binding(), &host).unwrap();
    assert_eq!(
        (again.signature, again.content),
        (call.signature, call.content)
    );
}

#[tokio::test]
async fn a_full_replay_cache_keeps_a_limited_share_for_each_namespace() {
    let bed = Bed::start();
    let node = bed.instance();
    bed.verify(&node).await.unwrap();
    let until = now() + minutes(15);
    let limits = ReplayLimits {
        all: 4,
        of_cluster: 3,
        own_of_cluster: 2,
        own_of_namespace: 3,
        of_instance: 99,
    };
    let memory = ReplayCache::with_limits(limits);
    let fill = |(namespace, cluster): (&str, &str), second: usize| {
        let mut node = node.clone();
        node.date = format!("20260101T1200{second:02}Z");
        let (call, key) = confirmed(&node);
        let owner = Owner {
            namespace,
            cluster,
            instance: INSTANCE,
        };
        let seen = memory.look(&call, &key, owner, now());
        assert_eq!(memory.remember(&call, key, owner, until), seen);
        seen
    };
    let taken = |cluster: (&str, &str), from: usize| {
        let seen = (from..from + 9).map(|second| fill(cluster, second));
        seen.filter(|seen| *seen == ReplayCheck::New).count()
    };

    let greedy = taken(("tenant-a", "uid-1"), 0);
    assert_eq!(greedy, 2, "half of the cache");
    let more = taken(("tenant-a", "uid-0"), 50);
    assert_eq!(more, 1, "the rest of the namespace's own share");
    let other = taken(("tenant-b", "uid-2"), 10);
    assert_eq!(other, 2, "one that is left, and one of its own share");
    let third = taken(("tenant-b", "uid-3"), 20);
    assert_eq!(third, 1, "the rest of the namespace's own share");
    let of_another = taken(("tenant-c", "uid-4"), 30);
    assert_eq!(of_another, 2, "the own share of a cluster");
    let last = taken(("tenant-d", "uid-5"), 40);
    assert_eq!(last, 0, "all own shares together are at their limit");
}

#[tokio::test]
async fn signatures_that_expire_together_are_dropped_in_small_steps() {
    let bed = Bed::start();
    let mut node = bed.instance();
    bed.verify(&node).await.unwrap();
    let until = now() + minutes(15);
    let memory = ReplayCache::with_limits(ReplayLimits {
        of_instance: 1000,
        ..LIMITS
    });
    for number in 0..200 {
        node.date = format!("20260101T12{:02}{:02}Z", number / 60, number % 60);
        let (call, key) = confirmed(&node);
        let remembered = memory.remember(&call, key, owner(INSTANCE), until);
        assert_eq!(remembered, ReplayCheck::New);
    }
    let after = until + Duration::from_secs(1);
    let (call, key) = confirmed(&node);
    // The signature has expired, whether or not the cache has already removed it.
    let look = || {
        let seen = memory.look(&call, &key, owner(INSTANCE), after);
        assert_eq!(seen, ReplayCheck::New);
    };

    let visited = most_visited(look);

    assert_eq!(visited, BTreeMap::from([(Lock::StsSignatures, 64)]));
    (0..3).for_each(|_| look());
    assert!(!memory.shown().contains(INSTANCE));
}

#[tokio::test]
async fn clusters_of_one_namespace_use_at_most_half_of_the_cache() {
    let bed = Bed::start();
    let node = bed.instance();
    bed.verify(&node).await.unwrap();
    let memory = ReplayCache::with_limits(ReplayLimits {
        all: 8,
        of_cluster: 2,
        own_of_cluster: 0,
        own_of_namespace: 0,
        of_instance: 99,
    });
    let taken = |namespace: &str, cluster: &str, from: usize| {
        let seen = (from..from + 4).map(|second| {
            let mut node = node.clone();
            node.date = format!("20260101T1200{second:02}Z");
            let (call, key) = confirmed(&node);
            let owner = Owner {
                namespace,
                cluster,
                instance: INSTANCE,
            };
            memory.remember(&call, key, owner, now() + minutes(15))
        });
        seen.filter(|seen| *seen == ReplayCheck::New).count()
    };

    let flood = (0..5).map(|number| taken("tenant-a", &number.to_string(), 4 * number));
    assert_eq!(flood.collect::<Vec<_>>(), [2, 2, 0, 0, 0]);
    assert_eq!(taken("tenant-b", "prod-1", 40), 2);
    assert_eq!(taken("tenant-b", "prod-2", 50), 2, "the other half");
    assert_eq!(taken("tenant-c", "prod-1", 30), 0, "it is full");
}

#[tokio::test]
async fn a_signature_refused_by_sts_is_not_sent_again_for_a_minute() {
    let bed = Bed::start();
    let node = bed.instance();
    let mut forged = node.clone();
    forged.credentials.secret_access_key = "made up".to_owned();
    let proof = forged.proof();

    // Changes to the wall clock have no effect.
    for (seconds, clock) in [(0, 0), (59, 0), (0, 13)] {
        pass(Duration::from_secs(seconds)).await;
        let later = now() + minutes(clock);
        let shown = bed.show_at(&proof, &forged, now(), later).await;
        assert_eq!(denial(shown), mismatch());
    }
    assert_eq!(bed.outcomes(), ["SignatureDoesNotMatch"]);
    pass(Duration::from_secs(1)).await;
    assert_eq!(
        denial(bed.show_at(&proof, &forged, now(), now()).await),
        mismatch()
    );
    assert_eq!(bed.outcomes().len(), 2);

    // The owner of the credentials has a different signature.
    bed.verify(&node).await.unwrap();
}

/// Advances the monotonic clock by this time. The clock is not paused during calls.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// STS denies a call, and then rejects the credentials. The second refusal still applies after the first refusal has
/// expired.
#[tokio::test]
async fn a_refusal_of_credentials_lasts_longer_than_a_refusal_of_a_call() {
    let refused = Refused::default();
    let node = Bed::start().instance();
    let proof = node.proof();
    let host = EndpointHost::sts(REGION).unwrap();
    let call = rebuild(&proof, &node.binding(), &host).unwrap();
    let remember = |code: &'static str| {
        let refusal = AwsDenial::CallerRefused(code.into()).into();
        refused.remember("tenant-a", &refusal, &call, &proof, &node.document);
    };
    let look = || refused.look(&call, &proof, &node.document);
    remember("SignatureDoesNotMatch");
    pass(Duration::from_secs(30)).await;
    remember("InvalidClientTokenId");

    assert_eq!(look(), Some(mismatch()));
    pass(Duration::from_secs(30)).await;
    let of_credentials = AwsDenial::CallerRefused("InvalidClientTokenId".into());
    assert_eq!(look(), Some(of_credentials));
    pass(Duration::from_secs(30)).await;
    assert_eq!(look(), None);
}

#[tokio::test]
async fn credentials_refused_by_sts_are_denied_for_a_minute() {
    let bed = Bed::start();
    let node = bed.instance();
    let mut unknown = node.clone();
    unknown.credentials.access_key_id = "ASIAAAAAAAAAAAAAAAAA".to_owned();
    let unknown_to_sts = AwsDenial::CallerRefused("InvalidClientTokenId".into());

    for key in ["one", "another"] {
        unknown.spki = key.as_bytes().to_vec();
        assert_eq!(denial(bed.verify(&unknown).await), unknown_to_sts);
    }

    assert_eq!(bed.outcomes(), ["InvalidClientTokenId"]);
    let mut with_another_token = unknown;
    with_another_token.credentials.session_token = "b3RoZXI=".to_owned();
    assert_eq!(
        denial(bed.verify(&with_another_token).await),
        unknown_to_sts
    );
    assert_eq!(bed.outcomes().len(), 2);
    bed.verify(&node).await.unwrap();
}
