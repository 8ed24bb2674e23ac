//! Tests of credentials that AWS rejects.

use aws_credential_types::credential_fn::provide_credentials_fn;
use aws_credential_types::provider::ProvideCredentials;
use parking_lot::Mutex;

use super::*;
use crate::tenancy::sessions::testing::NamedTokens;

#[tokio::test(start_paused = true)]
async fn a_refused_session_is_renewed_at_most_once_in_a_period() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(["a".to_owned()]);
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    let first = credentials.keys().await.unwrap();
    let began = Instant::now();

    // AWS rejects two calls that started at the same time.
    assert!(sessions.forget(credentials.key, began));
    let second = credentials.keys().await.unwrap();
    assert!(sessions.forget(credentials.key, began));
    assert_eq!(credentials.keys().await.unwrap(), second);
    assert_ne!(first, second);
    let again = (arn("a"), format!("{}#1", arn("jump")));
    assert_eq!(sts.calls()[2..], [again]);

    assert!(!sessions.forget(credentials.key, Instant::now()));
    assert_eq!(credentials.keys().await.unwrap(), second);
    let period = began + Duration::from_mins(5);
    let last = Duration::from_secs(1);
    let left = period.saturating_duration_since(Instant::now());
    advance(left.saturating_sub(last)).await;
    assert!(!sessions.forget(credentials.key, Instant::now()));
    advance(last).await;
    assert!(sessions.forget(credentials.key, Instant::now()));
    assert_ne!(credentials.keys().await.unwrap(), second);
    assert_eq!(sts.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_refused_static_access_key_is_kept() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    let plan = plan(&objects, "AWSClusterStaticIdentity/keys");
    let credentials = sessions.of_plan(&plan, REGION, &key("a"));
    credentials.keys().await.unwrap();
    assert!(!sessions.forget(credentials.key, Instant::now()));
    let unknown = CredentialsKey::new([9; 32]);
    assert!(!sessions.forget(unknown, Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_refused_source_role_is_reassumed_once() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let objects = over_a_jump_role(["a".to_owned()]);
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
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

#[tokio::test(start_paused = true)]
async fn a_refused_session_is_used_if_no_other_exists() {
    let sts = Arc::new(CountingSts::default());
    let sessions = sessions(&sts);
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    let credentials = sessions.of_plan(&plan(&objects, &of("a")), REGION, &key("a"));
    let first = credentials.keys().await.unwrap();
    let away = FailureKind::Unavailable("no connection".to_owned());
    sts.fail(&arn("a"), Some(away.clone()));

    assert!(sessions.forget(credentials.key, Instant::now()));
    assert_eq!(credentials.keys().await.unwrap(), first);
    assert_eq!(sts.count(), 2);
    let (end, failure) = credentials.condition();
    assert_eq!((end, failure.unwrap().kind), (first.expiry(), away.clone()));

    // STS is unavailable, so there is no other session.
    advance(Duration::from_mins(50)).await;
    credentials.keys().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sts.count(), 3);
    assert!(!sessions.forget(credentials.key, Instant::now()));
    assert_eq!(credentials.keys().await.unwrap(), first);
    assert_eq!(sts.count(), 3);

    advance(Duration::from_mins(10)).await;
    assert_eq!(credentials.keys().await.unwrap_err().kind, away);
}

/// The controller's credentials. Each renewal returns different credentials, but STS issues at most three different
/// ones.
#[derive(Debug, Default)]
struct Rotating(Mutex<u32>);

impl ProvideCredentials for Rotating {
    fn provide_credentials<'a>(&'a self) -> Provided<'a>
    where
        Self: 'a,
    {
        Provided::new(async {
            let number = {
                let mut number = self.0.lock();
                *number += 1;
                *number
            };
            sleep(Duration::from_secs(2)).await;
            if number > 2 {
                return Err(ProviderError::not_loaded("no more"));
            }
            Ok(Keys::new(
                format!("OWN{number}"),
                "secret",
                None,
                None,
                "test",
            ))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn the_controller_credentials_stay_usable_during_their_renewal() {
    let sessions = Sessions::new(
        SharedCredentialsProvider::new(Rotating::default()),
        Arc::new(CountingSts::default()),
        Arc::new(NamedTokens),
        DigestKey::new(&[7; 32]),
    );
    let credentials = sessions.of_plan(&plan(&objects(), CONTROLLER), REGION, &key("a"));
    let id = async || credentials.keys().await.unwrap().access_key_id().to_owned();
    assert_eq!(id().await, "OWN1");
    for after in ["OWN2", "OWN2"] {
        let before = id().await;
        let start = Instant::now();
        assert!(!sessions.forget(credentials.key, start));
        assert_eq!(id().await, before);
        assert_eq!(start.elapsed(), Duration::ZERO);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(id().await, after);
        advance(Duration::from_mins(6)).await;
    }
}

#[derive(Debug, thiserror::Error)]
#[error("service error")]
struct ServiceError(#[source] Box<dyn std::error::Error + Send + Sync>);

async fn refused_web_identity() -> Result<Keys, ProviderError> {
    let answer = "InvalidIdentityToken: No OpenIDConnect provider found";
    Err(ProviderError::provider_error(ServiceError(answer.into())))
}

#[tokio::test(start_paused = true)]
async fn the_error_has_the_causes_of_missing_controller_credentials() {
    let provider = provide_credentials_fn(refused_web_identity);
    let sessions = Sessions::new(
        SharedCredentialsProvider::new(provider),
        Arc::new(CountingSts::default()),
        Arc::new(NamedTokens),
        DigestKey::new(&[7; 32]),
    );
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));

    let keys = sessions
        .of_plan(&plan(&objects, &of("a")), REGION, &key("a"))
        .keys()
        .await;

    assert_eq!(
        keys.unwrap_err().to_string(),
        "the controller's own credentials: the controller has no AWS credentials: an error occurred while loading \
         credentials: service error: InvalidIdentityToken: No OpenIDConnect provider found"
    );
}
