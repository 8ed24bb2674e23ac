//! Tests of CAs that are served while the service runs, and of problems with them.

use super::*;
use crate::server_names::Reserved;

/// A token that contains all keys except one.
struct Without(&'static str);

impl Keys for Without {
    fn check(&self) -> Result<(), TokenError> {
        Ok(())
    }

    fn check_key(&self, label: &str) -> Result<(), TokenError> {
        if label == self.0 {
            let label = label.to_owned();
            return Err(TokenError::Key { label, count: 0 });
        }
        Ok(())
    }

    fn sign(&self, label: &str, _: SignatureAlgorithm, _: &[u8]) -> Result<Vec<u8>, TokenError> {
        self.check_key(label).map(|()| vec![1])
    }
}

fn authority(label: &str, cluster: &str) -> Arc<Authority> {
    let mut authority = ca(label).authority;
    authority.key_label = label.to_owned();
    authority.cluster = format!("tenant/{cluster}").parse().unwrap();
    Arc::new(authority)
}

#[tokio::test]
async fn a_missing_key_is_a_problem_of_only_its_own_ca() {
    let service = Service::new(Without("gone"), ONE_CALL, now);
    let authorities = [authority("gone", "one"), authority("there", "two")];
    let refused = vec!["3: it has no PEM certificate".to_owned()];
    service.serve(authorities, refused);
    let mut missing = service.missing.subscribe();
    service.check_keys();
    missing
        .wait_for(|missing| !missing.is_empty())
        .await
        .unwrap();

    let status = service.status(Request::new(StatusRequest::default()));
    let status = status.await.unwrap().into_inner();

    assert_eq!(status.health, "ok");
    let key = "0 private keys have the label \"gone\", but exactly one is required";
    let expected = [
        "3: it has no PEM certificate".to_owned(),
        format!("Cluster tenant/one: {key}"),
    ];
    assert_eq!(status.problems, expected);
    assert_eq!(status.problem_count, 2);
}

#[tokio::test]
async fn problems_in_a_status_are_limited_in_number_and_length() {
    let service = Service::new(Without(""), ONE_CALL, now);
    let refused = (0..100).map(|number| format!("{number}\u{e9}{}", "a".repeat(1000)));
    service.serve([], refused.collect());

    let status = service.status(Request::new(StatusRequest::default()));
    let status = status.await.unwrap().into_inner();

    assert_eq!((status.problems.len(), status.problem_count), (8, 100));
    for problem in status.problems {
        assert_eq!(problem.len(), 256);
        assert!(problem.is_ascii(), "{problem}");
    }
}

#[tokio::test]
async fn a_ca_is_signed_for_only_while_it_is_served() {
    let service = Service::new(Without(""), ONE_CALL, now);
    let late = ca("late");
    let request = SignRequest {
        ca_certificate_sha256: late.authority.sha256.to_vec(),
        algorithm: SignatureAlgorithm::EcdsaP256Sha256.into(),
        tbs_certificate: to_be_signed(&valid(), &late),
        ..SignRequest::default()
    };
    let signed = async || {
        let answer = service.sign(Request::new(request.clone())).await;
        answer.map_err(|status| status.code()).map(drop)
    };
    assert_eq!(signed().await, Err(Code::PermissionDenied));

    let late = Arc::new(late.authority);
    service.serve([late.clone()], Vec::new());
    assert_eq!(signed().await, Ok(()));
    let before = service.signing(&request).unwrap();
    service.serve([late], Vec::new());
    assert!(Arc::ptr_eq(&before, &service.signing(&request).unwrap()));

    service.serve([], Vec::new());
    assert_eq!(signed().await, Err(Code::PermissionDenied));
}

#[tokio::test]
async fn a_changed_file_does_not_free_the_turns_of_a_hanging_key() {
    let mut world = world();
    world.abandon().await;
    let first = world.first();
    let Authority {
        certificate,
        sha256,
        key_label,
        cluster,
        ..
    } = &*first.authority;
    let changed = |key_label: &str| {
        Arc::new(Authority {
            certificate: certificate.clone(),
            sha256: *sha256,
            key_label: key_label.to_owned(),
            cluster: cluster.clone(),
            reserved: Reserved::default(),
        })
    };

    world.service.serve([changed(key_label)], Vec::new());

    let refused = world.sign().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // A different key has its own turns.
    world.service.serve([changed("other")], Vec::new());
    let call = world.call(0);
    assert_eq!(world.asked().await, "other");
    for _ in 0..2 {
        world.answer();
    }
    assert_eq!(call.await.unwrap().unwrap(), [1]);
}
