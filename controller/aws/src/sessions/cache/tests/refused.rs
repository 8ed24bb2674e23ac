//! Credentials that AWS refuses.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_session_that_aws_refuses_is_assumed_again_and_not_again_and_again() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(["a".to_owned()]);
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, "a");
    let first = credentials.keys().await.unwrap();
    let began = Instant::now();

    // Two calls that began together are refused.
    assert!(sessions.forget(credentials.key, began));
    let second = credentials.keys().await.unwrap();
    assert!(sessions.forget(credentials.key, began));
    assert_eq!(credentials.keys().await.unwrap(), second);
    assert_ne!(first, second);
    let again = (arn("a"), format!("{}#1", arn("jump")));
    assert_eq!(sts.calls()[2..], [again]);

    assert!(!sessions.forget(credentials.key, Instant::now()));
    assert_eq!(credentials.keys().await.unwrap(), second);
    advance(Duration::from_mins(6)).await;
    assert!(sessions.forget(credentials.key, Instant::now()));
    assert_ne!(credentials.keys().await.unwrap(), second);
    assert_eq!(sts.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_access_key_that_aws_refuses_is_what_its_secret_has() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    let plan = plan(&objects, "AWSClusterStaticIdentity/keys");
    let credentials = sessions.of_plan(&plan, REGION, "a");
    credentials.keys().await.unwrap();
    assert!(!sessions.forget(credentials.key, Instant::now()));
    let unknown = CredentialsKey::new([9; 32]);
    assert!(!sessions.forget(unknown, Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_sts_refuses_is_assumed_again_once() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(["a".to_owned()]);
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, "a");
    let expired = FailureKind::Refused {
        code: "ExpiredToken".to_owned(),
        request_id: None,
    };
    sts.fail(&arn("a"), Some(expired.clone()));
    let error = credentials.keys().await.unwrap_err();
    assert_eq!((&*error.step, error.kind), (&*arn("a"), expired));
    let calls = [
        (arn("jump"), "OWN".to_owned()),
        (arn("a"), format!("{}#1", arn("jump"))),
        (arn("jump"), "OWN".to_owned()),
        (arn("a"), format!("{}#3", arn("jump"))),
    ];
    assert_eq!(sts.calls(), calls);
}
