mod api_server;
mod clusters;
mod limits;
mod tokens;
mod unreadable;

use node_attestation_runtime::capi::{ClusterObserver, Objects, Selection};
use node_attestation_runtime::metrics::Metrics;
use node_attestation_runtime::testing::ThreadLog;
use serde_json::Value;
use tokio::task::JoinHandle;
use tracing::Level;

use self::api_server::Server;
use super::*;
use crate::credentials::ClusterTenant;
use crate::tenancy::store::IdentityError;
use crate::tenancy::stored_objects::INFRASTRUCTURE;
use crate::tenancy::{Ack, TEAM_MAP, TenancySettings};

const CLUSTERS: [&str; 4] = ["cluster.x-k8s.io", "v1beta2", "Cluster", "clusters"];
const STATICS: [&str; 4] = [
    INFRASTRUCTURE,
    "v1beta2",
    "AWSClusterStaticIdentity",
    "awsclusterstaticidentities",
];
const AWS_CLUSTERS: [&str; 4] = [INFRASTRUCTURE, "v1beta2", "AWSCluster", "awsclusters"];
const ROLES: [&str; 4] = [
    INFRASTRUCTURE,
    "v1beta2",
    "AWSClusterRoleIdentity",
    "awsclusterroleidentities",
];

/// The kinds that the API server serves. It does not serve the others, such as managed control planes.
pub(super) const KINDS: [[&str; 4]; 4] = [CLUSTERS, STATICS, AWS_CLUSTERS, ROLES];

/// A time that is longer than the longest pause after a watch fails.
const FAILED: Duration = Duration::from_secs(16);

struct Bed {
    server: Server,
    store: Arc<IdentityStore>,
    watch: IdentityWatch,
}

impl Bed {
    fn new() -> Self {
        Self::with(Ack::Carm)
    }

    fn with(ack: Ack) -> Self {
        let settings = TenancySettings {
            ack,
            ..TenancySettings::default()
        };
        let store = Arc::new(IdentityStore::new(settings, "capa-system"));
        let server = Server::start();
        let places = Places {
            capa_namespace: "capa-system".to_owned(),
            namespace: None,
            ack_namespace: "ack-system".to_owned(),
        };
        let client = server.access().client().clone();
        Self {
            watch: IdentityWatch::new(client, places, store.clone()),
            server,
            store,
        }
    }

    /// Starts the watches in the background, and waits until the existing objects are read.
    async fn begin(&self) -> JoinHandle<()> {
        let watch = self.watch.clone();
        let client = self.server.access().client().clone();
        let observer: Arc<dyn ClusterObserver> = self.store.clone();
        let (selection, metrics) = (Selection::default(), Metrics::default());
        let (_, clusters) = Objects::observed(client, selection, &metrics, Some(observer));
        let running = tokio::spawn(async move { tokio::join!(watch.run(), clusters).0 });
        settle().await;
        running
    }

    fn namespace(&self, name: &str) {
        self.server.put("namespaces", "", name, &json!({}));
    }

    /// Adds an identity that every namespace is allowed to use.
    fn identity(&self, name: &str, secret: &str) {
        let spec = json!({"spec": {"allowedNamespaces": {}, "secretRef": secret}});
        self.server.put(STATICS[3], "", name, &spec);
    }

    fn secret(&self, name: &str, id: &str) {
        let [id, key] = [id, "s3cret"].map(|text| data_encoding::BASE64.encode(text.as_bytes()));
        let data = json!({"data": {"AccessKeyID": id, "SecretAccessKey": key}});
        self.server.put("secrets", "capa-system", name, &data);
    }

    /// Adds the cluster `one` in `tenant-a`, with a static identity.
    fn cluster(&self, identity: &str) {
        let reference = json!({"kind": "AWSCluster", "name": "one", "apiGroup": INFRASTRUCTURE});
        let cluster = json!({"spec": {"infrastructureRef": reference}});
        self.server.put(CLUSTERS[3], "tenant-a", "one", &cluster);
        let reference = json!({"kind": "AWSClusterStaticIdentity", "name": identity});
        let spec = json!({"spec": {"identityRef": reference}});
        self.server.put(AWS_CLUSTERS[3], "tenant-a", "one", &spec);
    }

    fn resolve(&self) -> Result<(), IdentityError> {
        let tenant = ClusterTenant::new(ObjectKey::new("tenant-a", "one"));
        self.store.resolve(&tenant).map(drop)
    }

    fn reason(&self) -> Option<&'static str> {
        self.resolve().unwrap_err().reason()
    }

    /// The ID of the access key in the Secret with this name.
    fn access_key(&self, secret: &str) -> Option<String> {
        let mut id = None;
        self.store.update(|all| {
            let key = all.access_keys.get(secret);
            id = key.map(|key| key.as_ref().unwrap().id.clone());
        });
        id
    }
}

/// Waits long enough for work that does not include a pause, but not as long as the shortest pause.
async fn settle() {
    sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_is_watched_by_its_name_while_an_identity_names_it() {
    let bed = Bed::new();
    bed.identity("a", "keys");
    bed.identity("b", "keys");
    for secret in ["keys", "other"] {
        bed.secret(secret, "AKIA1");
    }
    let _running = bed.begin().await;
    assert_eq!(bed.access_key("keys").as_deref(), Some("AKIA1"));
    assert_eq!(bed.server.watched("secrets"), [Some("keys".to_owned())]);
    let named = |request: &String| request.contains("fieldSelector=metadata.name%3Dkeys");
    let requests = bed.server.requests("secrets");
    assert!(requests.iter().all(named), "{requests:?}");

    bed.secret("keys", "AKIA2");
    settle().await;
    assert_eq!(bed.access_key("keys").as_deref(), Some("AKIA2"));

    bed.server.remove(STATICS[3], "", "a");
    settle().await;
    assert_eq!(bed.access_key("keys").as_deref(), Some("AKIA2"));

    bed.server.remove(STATICS[3], "", "b");
    settle().await;
    assert_eq!(bed.access_key("keys"), None);
    assert!(bed.server.watched("secrets").is_empty());

    bed.secret("keys", "AKIA3");
    bed.identity("c", "keys");
    settle().await;
    assert_eq!(bed.access_key("keys").as_deref(), Some("AKIA3"));
}

#[tokio::test(start_paused = true)]
async fn a_changed_secret_reference_changes_the_watched_secret() {
    let bed = Bed::new();
    bed.identity("a", "keys");
    bed.secret("keys", "AKIA1");
    bed.secret("other", "AKIA2");
    let _running = bed.begin().await;
    bed.identity("a", "other");
    settle().await;
    assert_eq!(bed.server.watched("secrets"), [Some("other".to_owned())]);
    assert_eq!(bed.access_key("keys"), None);
    assert_eq!(bed.access_key("other").as_deref(), Some("AKIA2"));
}

#[tokio::test(start_paused = true)]
async fn secrets_over_the_limit_wait_and_do_not_displace_others() {
    let bed = Bed::new();
    bed.namespace("tenant-a");
    for number in 0..MAX_SECRETS {
        let name = format!("b{number}");
        bed.identity(&name, &name);
        bed.secret(&name, "AKIA1");
    }
    let _running = bed.begin().await;
    assert_eq!(bed.server.watched("secrets").len(), MAX_SECRETS);
    // In alphabetical order, this identity would be the first.
    bed.identity("a", "a");
    bed.secret("a", "AKIA2");
    bed.cluster("a");
    settle().await;
    assert_eq!(bed.server.watched("secrets").len(), MAX_SECRETS);
    let error = bed.resolve().unwrap_err();
    assert_eq!(error, IdentityError::TooManySecrets("a".to_owned()));
    assert_eq!(error.reason(), Some("TooManySecrets"));
    bed.cluster("b7");
    settle().await;
    bed.resolve().unwrap();

    bed.server.remove(STATICS[3], "", "b0");
    bed.cluster("a");
    settle().await;
    bed.resolve().unwrap();
    assert_eq!(bed.server.watched("secrets").len(), MAX_SECRETS);
}

#[tokio::test(start_paused = true)]
async fn an_object_missing_from_a_new_list_is_removed() {
    let bed = Bed::new();
    bed.identity("a", "keys");
    bed.secret("keys", "AKIA1");
    bed.namespace("tenant-a");
    bed.cluster("a");
    let map = json!({"data": {"team-a": "arn:aws:iam::111122223333:role/a"}});
    bed.server.put("configmaps", "ack-system", TEAM_MAP, &map);
    let _running = bed.begin().await;
    bed.resolve().unwrap();
    let there = |bed: &Bed| {
        let mut there = [false; 4];
        bed.store.update(|all| {
            there = [
                all.team_map.is_some(),
                all.namespaces.contains_key("tenant-a"),
                all.statics.contains_key("a"),
                all.access_keys.contains_key("keys"),
            ];
        });
        (there, bed.store.clusters().map(|clusters| clusters.len()))
    };
    assert_eq!(there(&bed), ([true; 4], Some(1)));

    bed.server.break_watches();
    bed.server.remove("configmaps", "ack-system", TEAM_MAP);
    bed.server.remove("namespaces", "", "tenant-a");
    bed.server.remove("secrets", "capa-system", "keys");
    bed.server.remove(AWS_CLUSTERS[3], "tenant-a", "one");
    sleep(FAILED * 2).await;
    assert_eq!(there(&bed), ([false, false, true, false], Some(1)));
    assert_eq!(bed.reason(), Some("InfrastructureNotFound"));

    bed.server.break_watches();
    bed.server.remove(CLUSTERS[3], "tenant-a", "one");
    bed.server.remove(STATICS[3], "", "a");
    sleep(FAILED * 2).await;
    assert_eq!(there(&bed), ([false; 4], Some(0)));
    // The Secret no longer belongs to an identity.
    assert!(bed.server.watched("secrets").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_secret_is_not_found() {
    let bed = Bed::new();
    bed.identity("a", "keys");
    bed.secret("keys", "AKIA1");
    bed.namespace("tenant-a");
    bed.cluster("a");
    let _running = bed.begin().await;
    bed.resolve().unwrap();
    bed.server.remove("secrets", "capa-system", "keys");
    settle().await;
    assert_eq!(bed.reason(), Some("SecretNotFound"));
    bed.secret("keys", "AKIA2");
    settle().await;
    bed.resolve().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unserved_kind_has_no_objects_until_it_is_served() {
    let bed = Bed::new();
    for kind in [STATICS, AWS_CLUSTERS, ROLES] {
        bed.server.withdraw(kind[3]);
    }
    bed.namespace("tenant-a");
    let _running = bed.begin().await;
    let unknown = IdentityError::ClusterNotFound(ObjectKey::new("tenant-a", "one"));
    assert_eq!(bed.resolve(), Err(unknown));

    for kind in [STATICS, AWS_CLUSTERS] {
        bed.server.serve(kind);
    }
    bed.identity("a", "keys");
    bed.secret("keys", "AKIA1");
    bed.cluster("a");
    sleep(NOT_SERVED).await;
    bed.resolve().unwrap();

    bed.server.withdraw(STATICS[3]);
    sleep(FAILED * 2).await;
    assert_eq!(bed.reason(), Some("IdentityNotFound"));
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_object_is_logged_once_and_does_not_block_others() {
    let log = ThreadLog::start(Level::INFO);
    let bed = Bed::new();
    bed.server.refuse("namespaces", Some(403));
    bed.server.refuse("secrets", Some(403));
    bed.identity("a", "keys");
    bed.secret("keys", "AKIA1");
    bed.cluster("a");
    let _running = bed.begin().await;
    sleep(Duration::from_mins(5)).await;
    assert!(bed.server.requests("namespaces").len() > 10);
    assert_eq!(
        bed.resolve(),
        Err(IdentityError::NotRead(Source::Namespaces))
    );
    assert_eq!(bed.store.clusters().map(|clusters| clusters.len()), Some(1));
    assert_eq!(log.count(&["WARN", "kind=\"Namespace\""]), 1);
    assert_eq!(log.count(&["WARN", "kind=\"Secret\" object=\"keys\""]), 1);

    bed.server.refuse("namespaces", None);
    bed.namespace("tenant-a");
    sleep(FAILED).await;
    let unread = IdentityError::NotRead(Source::Secret("keys".to_owned()));
    assert_eq!(bed.resolve(), Err(unread));
    // After a successful read, the next failure is logged again.
    bed.server.refuse("secrets", None);
    sleep(FAILED).await;
    bed.resolve().unwrap();
    bed.server.refuse("secrets", Some(403));
    bed.server.break_watches();
    sleep(FAILED * 3).await;
    assert_eq!(log.count(&["WARN", "kind=\"Secret\" object=\"keys\""]), 2);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_watch_without_events_lists_again_once() {
    let bed = Bed::new();
    bed.namespace("tenant-a");
    bed.identity("a", "keys");
    bed.secret("keys", "AKIA1");
    bed.cluster("a");
    let _running = bed.begin().await;
    bed.server.cut_watches();
    sleep(Duration::from_mins(5)).await;

    assert_eq!(bed.resolve(), Ok(()), "it is not broken any more");
    for [.., plural] in KINDS {
        let requests = bed.server.requests(plural);
        let lists = requests.iter().filter(|one| !one.contains("watch=true"));
        assert_eq!(lists.count(), 2, "{plural}: {requests:?}");
    }
    bed.secret("keys", "AKIA2");
    settle().await;
    assert_eq!(bed.access_key("keys").as_deref(), Some("AKIA2"));
}

const PLURAL: &str = "kubeletauthentications";
const ACCOUNT: &str = "111122223333";

impl Bed {
    fn authentication(&self) {
        let fields = json!({"metadata": {"annotations": {}}});
        self.server.put(PLURAL, "tenant-a", "one", &fields);
    }

    async fn write(&self) {
        let cluster = ObjectKey::new("tenant-a", "one");
        self.watch.write_account(cluster, ACCOUNT.to_owned()).await;
    }

    fn written(&self) -> Value {
        let object = self.server.object(PLURAL, "tenant-a", "one");
        object["metadata"]["annotations"][AWS_ACCOUNT_ANNOTATION].clone()
    }

    fn patches(&self) -> usize {
        let requests = self.server.requests(PLURAL);
        let patches = requests.iter().filter(|it| it.starts_with("PATCH"));
        patches.count()
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_annotation_is_written_unless_one_exists() {
    let bed = Bed::new();
    bed.authentication();
    bed.write().await;
    assert_eq!(bed.written(), ACCOUNT);

    let other = json!({"metadata": {"annotations": {AWS_ACCOUNT_ANNOTATION: "444455556666"}}});
    bed.server.put(PLURAL, "tenant-a", "one", &other);
    bed.write().await;
    assert_eq!(bed.written(), "444455556666");
    assert_eq!(bed.patches(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_account_written_concurrently_by_another_replica_is_kept() {
    let bed = Bed::new();
    bed.authentication();
    bed.server.rival("444455556666");
    bed.write().await;
    assert_eq!(bed.written(), "444455556666");
    assert_eq!(bed.patches(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_account_is_not_written_for_a_missing_object() {
    let bed = Bed::new();
    bed.write().await;
    assert_eq!(bed.server.requests(PLURAL).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_account_is_written_when_the_api_server_is_available_again() {
    let bed = Bed::new();
    bed.authentication();
    bed.server.refuse(PLURAL, Some(503));
    let (sender, accounts) = mpsc::unbounded_channel();
    let watch = bed.watch.clone();
    let running = tokio::spawn(async move { watch.write_accounts(accounts).await });
    let cluster = ObjectKey::new("tenant-a", "one");
    sender.send((cluster, ACCOUNT.to_owned())).unwrap();
    drop(sender);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(bed.written(), Value::Null);
    bed.server.refuse(PLURAL, None);
    running.await.unwrap();
    assert_eq!(bed.written(), ACCOUNT);
}

#[tokio::test(start_paused = true)]
async fn an_account_that_cannot_be_written_is_retried_with_backoff() {
    let log = ThreadLog::start(Level::INFO);
    let bed = Bed::new();
    bed.authentication();
    bed.server.refuse(PLURAL, Some(422));
    let watch = bed.watch.clone();
    let cluster = ObjectKey::new("tenant-a", "one");
    let running =
        tokio::spawn(async move { watch.write_account(cluster, ACCOUNT.to_owned()).await });

    sleep(Duration::from_hours(24)).await;
    let tries = bed.server.requests(PLURAL).len();
    assert!((24..40).contains(&tries), "{tries}");
    let warned = log.count(&["WARN", "cannot record the AWS account of the cluster"]);
    assert_eq!(warned, 1, "{}", log.text());

    bed.server.refuse(PLURAL, None);
    running.await.unwrap();
    assert_eq!(bed.written(), ACCOUNT);
}

#[tokio::test(start_paused = true)]
async fn the_account_of_a_recreated_cluster_is_written_once() {
    let bed = Bed::new();
    bed.authentication();
    bed.server.refuse(PLURAL, Some(422));
    let (sender, accounts) = mpsc::unbounded_channel();
    let watch = bed.watch.clone();
    let running = tokio::spawn(async move { watch.write_accounts(accounts).await });
    for number in 0..50 {
        let cluster = ObjectKey::new("tenant-a", "one");
        sender.send((cluster, format!("{number:012}"))).unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    let before = bed.server.requests(PLURAL).len();

    sleep(Duration::from_hours(1)).await;
    let tries = bed.server.requests(PLURAL).len() - before;
    assert!((1..10).contains(&tries), "{tries}");

    bed.server.refuse(PLURAL, None);
    drop(sender);
    running.await.unwrap();
    assert_eq!(bed.written(), "000000000049");
    assert_eq!(bed.patches(), 1);
}
