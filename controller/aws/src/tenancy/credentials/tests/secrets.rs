//! Tests of Secrets that are deleted, and of Secrets that are never printed.

use std::fmt::{Debug, Write as _};

use node_attestation_runtime::testing::ThreadLog;
use tracing::Level;

use super::*;
use crate::ec2::{Instances, Limits};
use crate::testing::{FakeEc2, INSTANCE, facts};

const FIRST: &str = "f1rst-s3cret-acc3ss-key";
const SECOND: &str = "s3cond-s3cret-acc3ss-key";
const TOKEN: &str = "s3ssion-t0ken";
const IDENTITY: &str = "AWSClusterStaticIdentity/keys";

/// A test bed with a Secret that contains this access key, and a cluster whose identity uses the Secret.
fn bed(id: &str, key: &str) -> (Bed, ClusterTenant) {
    let bed = Bed::new();
    bed.store.update(|all| static_identity(all, "keys"));
    bed.store.read(&Source::Secret("keys".to_owned()));
    rotate(&bed, id, key);
    let cluster = bed.cluster("tenant-a", IDENTITY);
    (bed, cluster)
}

fn rotate(bed: &Bed, id: &str, key: &str) {
    let data = [
        ("AccessKeyID", id),
        ("SecretAccessKey", key),
        ("SessionToken", TOKEN),
    ];
    bed.store.update(|all| secret(all, "keys", &data));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_secret_ends_the_session_after_pending_requests() {
    let (bed, a) = bed("AKIA1", FIRST);
    bed.role("b");
    let b = bed.cluster("tenant-b", "AWSClusterRoleIdentity/b");
    bed.access_key(&b).await;
    let under_way = bed.ask(&a).await.unwrap();
    let sessions = bed.tenants.sessions.get().unwrap();
    assert_eq!(sessions.len(), 3);

    bed.store.update(|all| drop(all.access_keys.remove("keys")));

    assert_eq!(bed.refused(&a).await, "SecretNotFound");
    let report = bed.tenants.identity_report(&a);
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::False, "SecretNotFound")
    );
    assert_eq!(key_of(&under_way).await, "AKIA1");
    assert_eq!(bed.tenants.expiry(&a.cluster), None);
    drop(under_way);
    assert_eq!(sessions.len(), 2);
    assert!(bed.tenants.expiry(&b.cluster).is_some());

    rotate(&bed, "AKIA2", SECOND);
    assert_eq!(bed.access_key(&a).await, "AKIA2");
}

#[tokio::test(start_paused = true)]
async fn a_removed_secret_drops_the_session_after_the_pending_call() {
    let (bed, a) = bed("AKIA1", FIRST);
    let limits = Limits::default();
    let ec2 = Arc::new(FakeEc2::with([facts()]));
    let instances = Instances::with(bed.tenants.clone(), ec2.clone(), limits);
    let tenant = Tenant::Cluster(a.clone());
    let described = tokio::spawn(async move {
        let described = instances.describe(&tenant, REGION, INSTANCE).await;
        (described, instances)
    });
    // The request waits for other requests.
    sleep(limits.window / 2 + Duration::from_millis(100)).await;
    bed.store.update(|all| drop(all.access_keys.remove("keys")));
    assert_eq!(bed.refused(&a).await, "SecretNotFound");
    assert!(ec2.calls().is_empty());

    let (described, instances) = described.await.unwrap();

    assert_eq!(described.unwrap().unwrap().id, INSTANCE);
    assert_eq!(bed.tenants.sessions.get().unwrap().len(), 0);
    // The same access key is used again.
    rotate(&bed, "AKIA1", FIRST);
    sleep(limits.calls.remembered).await;
    let tenant = Tenant::Cluster(a);
    let described = instances.describe(&tenant, REGION, INSTANCE).await;
    assert_eq!(described.unwrap().unwrap().id, INSTANCE);
    assert_eq!(ec2.calls().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_rotated_secret_is_not_shown_or_logged() {
    let log = ThreadLog::start(Level::TRACE);
    let mut shown = String::new();
    let mut show = |what: &dyn Debug| writeln!(shown, "{what:?} {what:#?}").unwrap();
    let (bed, a) = bed("AKIA1", FIRST);
    for (id, key) in [("AKIA1", FIRST), ("AKIA2", SECOND)] {
        rotate(&bed, id, key);
        show(&bed.store);
        show(&bed.store.resolve(&a).unwrap());
        let credentials = bed.ask(&a).await.unwrap();
        assert_eq!(key_of(&credentials).await, id);
        show(&credentials);
        show(&bed.tenants);
        show(&bed.tenants.sessions);
        show(
            &bed.tenants
                .clusters
                .read(|clusters| clusters[&a.cluster].shown()),
        );
        show(&bed.tenants.identity_report(&a));
        show(&bed.tenants.credentials_report(&a.cluster));
    }
    bed.sts.fail("GetCallerIdentity", Some(denied()));
    rotate(&bed, "AKIA3", FIRST);
    let error = bed.ask(&a).await.unwrap_err();
    show(&error);
    let credentials = bed.tenants.credentials_report(&a.cluster);
    assert_eq!(credentials.as_ref().unwrap().reason, "AssumeRoleDenied");
    show(&credentials);
    rotate(&bed, "AKIA3", "");
    assert_eq!(bed.refused(&a).await, "SecretMalformed");
    show(&bed.store);
    show(&bed.tenants.identity_report(&a));
    tracing::trace!("logged");

    let log = log.text();
    assert!(log.contains("logged"));
    assert!(shown.contains("AKIA2"), "{shown}");
    for part in [FIRST, SECOND, TOKEN] {
        let bytes = format!("{:?}", part.as_bytes());
        let bytes = bytes.trim_matches(['[', ']']);
        for form in [part, &data_encoding::BASE64.encode(part.as_bytes()), bytes] {
            assert!(!shown.contains(form), "{form} in {shown}");
            assert!(!log.contains(form), "{form} in {log}");
        }
    }
}

fn denied() -> FailureKind {
    FailureKind::Refused {
        code: "InvalidClientTokenId".to_owned(),
        request_id: None,
    }
}

async fn key_of(credentials: &Credentials) -> String {
    let provider = credentials.config.credentials_provider().unwrap();
    let keys = aws_credential_types::provider::ProvideCredentials::provide_credentials(&provider);
    keys.await.unwrap().access_key_id().to_owned()
}
