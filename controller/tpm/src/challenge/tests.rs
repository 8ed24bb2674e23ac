use super::*;
use crate::structure::{NAMED_BY_SHA_256, NAMED_BY_SHA_384};

fn key() -> ChallengeKey {
    ChallengeKey::new([0xa5; 32])
}

#[test]
fn the_challenge_secret_matches_the_documented_hmac() {
    let endorsement = Name::of(NAMED_BY_SHA_384, b"endorsement");
    let attestation = Name::of(NAMED_BY_SHA_256, b"attestation");
    let subject = Subject {
        cluster_uid: "uid",
        audience: &Audience::parse("prod").unwrap(),
        endorsement: &endorsement,
        attestation: &attestation,
        spki: b"spki",
        provider_id: &ProviderId::parse("tpm://digest").unwrap(),
        node_name: &NodeName::parse("n1").unwrap(),
    };
    let expiry = Expiry::parse("2026-01-01T12:05:00Z").unwrap();

    let secret = subject.secret(&key(), ChallengeId::new([7; 16]), &expiry);

    let mut message = b"tpm/v1".to_vec();
    for field in [
        &b"uid"[..],
        b"prod",
        endorsement.as_bytes(),
        attestation.as_bytes(),
        b"spki",
        b"tpm://digest",
        b"n1",
        &[7; 16],
        b"2026-01-01T12:05:00Z",
    ] {
        message.extend([0, 0, 0, u8::try_from(field.len()).unwrap()]);
        message.extend(field);
    }
    let expected = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &[0xa5; 32]), &message);
    assert_eq!(secret.as_slice(), expected.as_ref());
    assert_eq!(
        (endorsement.as_bytes().len(), attestation.as_bytes().len()),
        (50, 34)
    );
}

#[test]
fn moving_bytes_between_fields_changes_the_challenge_secret() {
    let name = Name::of(NAMED_BY_SHA_256, b"");
    let provider_id = ProviderId::parse("tpm://digest").unwrap();
    let node_name = NodeName::parse("n1").unwrap();
    let expiry = Expiry::parse("2026-01-01T12:05:00Z").unwrap();
    let secret = |cluster_uid: &str, audience: &str| {
        let subject = Subject {
            cluster_uid,
            audience: &Audience::parse(audience).unwrap(),
            endorsement: &name,
            attestation: &name,
            spki: b"spki",
            provider_id: &provider_id,
            node_name: &node_name,
        };
        subject.secret(&key(), ChallengeId::new([7; 16]), &expiry)
    };

    assert_eq!(*secret("ab", "c"), *secret("ab", "c"));
    assert_ne!(*secret("ab", "c"), *secret("a", "bc"));
}

#[test]
fn a_challenge_id_is_valid_only_for_its_key_and_cluster() {
    let (one, other) = (key(), ChallengeKey::new([0x5a; 32]));
    let id = one.new_id("uid").unwrap();
    let in_use = |current: &ChallengeKey, former: Option<&ChallengeKey>| ChallengeKeys {
        current: current.clone(),
        former: former.cloned(),
    };

    assert!(in_use(&one, None).made(id, "uid"));
    assert!(in_use(&other, Some(&one)).made(id, "uid"));
    assert!(!in_use(&other, None).made(id, "uid"));
    assert!(!in_use(&other, Some(&other)).made(id, "uid"));
    assert!(!in_use(&one, None).made(id, "another"));
    for place in 0..16 {
        let mut bytes = *id.as_bytes();
        bytes[place] ^= 1;
        assert!(
            !in_use(&one, None).made(ChallengeId::new(bytes), "uid"),
            "{place}"
        );
    }
    assert_ne!(one.new_id("uid").unwrap(), id);
}

#[test]
fn a_challenge_key_is_not_shown() {
    let keys = ChallengeKeys {
        current: key(),
        former: Some(key()),
    };

    let shown = format!("{keys:?}");

    assert!(
        !shown.contains("165") && !shown.to_lowercase().contains("a5"),
        "{shown}"
    );
}
