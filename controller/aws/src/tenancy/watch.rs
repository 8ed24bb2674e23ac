//! The watches that fill the identity store.
//!
//! The user of the client needs permission to get, list and watch the identities, the Namespaces and the objects that
//! refer to identities. The user also needs permission to list and watch single Secrets and `ConfigMap` objects by
//! name. The [observer](node_attestation_runtime::capi::ClusterObserver) of the controller's only Cluster watch updates
//! the Clusters in the store.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{AbortHandle, abortable};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, Stream, StreamExt as _};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use kubelet_attestation::backoff::Backoff;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::secret::Secret as SecretValue;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::{AWS_ACCOUNT_ANNOTATION, KubeletAuthentication};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::log_lines::ClusterLines;
use node_attestation_runtime::logs::Failures;
use node_attestation_runtime::watch::{
    ExponentialBackoff, Lenient, Skipped, Unreadable, WatchLog, is_gone, listening,
    metadata_of_one, on_management, patched_metadata, token_text, watch_config,
};
use serde_json::json;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::tenancy::sessions::{TokenError, Tokens};
use crate::tenancy::store::{IdentityStore, MAX_SECRETS, Source};
use crate::tenancy::stored_objects::{
    Kind, Places, WithSpec, key_of, kind_of, put_config_map, put_custom, put_namespace, put_secret,
};
use crate::tenancy::{IdentityKind, ServiceAccount};

/// The pause between two lookups of a kind that is not served, because an administrator can install it later.
const NOT_SERVED: Duration = Duration::from_mins(1);

/// The pauses before an annotation is written again. The longest pause is for an object that cannot hold more
/// annotations.
const WRITE_AGAIN: Backoff = Backoff {
    first: Duration::from_secs(15),
    longest: Duration::from_hours(1),
};

/// The field manager.
const CONTROLLER: &str = "node-attestation-controller";

/// The deadline for a call.
const CALL: Duration = Duration::from_secs(10);

/// The watches of a management cluster. They run as long as this value is polled.
#[derive(derive_more::Debug, Clone)]
#[debug("IdentityWatch({places:?})")]
pub struct IdentityWatch {
    client: Client,
    places: Places,
    store: Arc<IdentityStore>,
}

impl IdentityWatch {
    /// Fills `store` with objects from `client`'s cluster.
    pub fn new(client: Client, places: Places, store: Arc<IdentityStore>) -> Self {
        Self {
            client,
            places,
            store,
        }
    }

    /// Watches all sources that the store needs. Never returns.
    pub async fn run(&self) {
        let static_identities = Notify::new();
        let mut watches = FuturesUnordered::new();
        let mut sources = self.store.sources();
        // The observer of the controller's Cluster watch updates the store.
        sources.retain(|source| *source != Source::Clusters);
        for source in sources {
            watches.push(self.follow(source, &static_identities));
        }
        tokio::join!(self.follow_secrets(&static_identities), async {
            while watches.next().await.is_some() {}
        });
    }

    /// Watches a source in the version that is currently served.
    async fn follow(&self, source: Source, changed: &Notify) {
        let mut log = match source.name() {
            Some(name) => WatchLog::of_one(source.kind(), name),
            None => WatchLog::new(source.kind()),
        };
        let mut waits = ExponentialBackoff::default();
        loop {
            match timeout(CALL, kind_of(&self.client, &source)).await {
                Ok(Ok(Kind::NotServed)) => {
                    self.store.retain(&source, &BTreeSet::new());
                    self.store.read(&source);
                    changed.notify_one();
                    sleep(NOT_SERVED).await;
                    continue;
                }
                Ok(Ok(kind)) => self.watch(&source, kind, changed, &mut log).await,
                Ok(Err(error)) => {
                    self.store.failed(&source);
                    log.failed(&error);
                }
                Err(elapsed) => {
                    self.store.failed(&source);
                    log.failed(&elapsed);
                }
            }
            sleep(waits.next_wait()).await;
        }
    }

    /// Watches until the API server stops serving this version.
    async fn watch(&self, source: &Source, kind: Kind, changed: &Notify, log: &mut WatchLog) {
        let store = &*self.store;
        let (reported, of) = (self.store.clone(), source.clone());
        let client = listening(self.client.clone(), move |_| reported.heard(&of));
        let config = match source.name() {
            Some(name) => watch_config().fields(&format!("metadata.name={name}")),
            None => watch_config(),
        };
        let filled = Filled {
            store,
            source,
            changed,
        };
        match (source, kind) {
            (_, Kind::Custom(resource)) => {
                let api = match &self.places.namespace {
                    Some(namespace) if source.is_namespaced() => {
                        Api::namespaced_with(client, namespace, &resource)
                    }
                    Some(_) | None => Api::all_with(client, &resource),
                };
                let put = |key: &ObjectKey, object: Option<&WithSpec>| {
                    let put = put_custom(store, source, key, object);
                    if *source == Source::Identities(IdentityKind::Static) {
                        changed.notify_one();
                    }
                    put
                };
                filled.follow(on_management(api, config), log, put).await;
            }
            (Source::Secret(name), _) => {
                let api = Api::namespaced(client, &self.places.capa_namespace);
                let put = |_: &ObjectKey, object: Option<&_>| put_secret(store, name, object);
                filled.follow(on_management(api, config), log, put).await;
            }
            (Source::ConfigMap(name), _) => {
                let api = Api::namespaced(client, &self.places.ack_namespace);
                let put = |_: &ObjectKey, object: Option<&_>| put_config_map(store, name, object);
                filled.follow(on_management(api, config), log, put).await;
            }
            _ => {
                let put = |key: &ObjectKey, object: Option<&_>| put_namespace(store, key, object);
                let events = on_management(Api::all(client), config);
                filled.follow(events, log, put).await;
            }
        }
    }

    /// Watches only the Secrets to which an identity refers.
    async fn follow_secrets(&self, changed: &Notify) {
        let mut watches = FuturesUnordered::new();
        let mut running: BTreeMap<String, oneshot::Sender<()>> = BTreeMap::new();
        let mut is_logged = false;
        loop {
            let mut wanted = self.store.secrets();
            running.retain(|name, _| {
                let is_wanted = wanted.contains(name);
                if !is_wanted {
                    self.store.forget(&Source::Secret(name.clone()));
                }
                is_wanted
            });
            // Secrets that are already watched remain watched, so that a new identity does not displace them.
            let mut room = MAX_SECRETS.saturating_sub(running.len());
            let mut unwatched = BTreeSet::new();
            wanted.retain(|name| {
                let is_new = !running.contains_key(name);
                if is_new && room == 0 {
                    unwatched.insert(name.clone());
                    return false;
                }
                room -= usize::from(is_new);
                true
            });
            if unwatched.is_empty() {
                is_logged = false;
            } else if !is_logged {
                is_logged = true;
                let (count, limit) = (unwatched.len(), MAX_SECRETS);
                tracing::warn!(
                    count,
                    limit,
                    "AWS identities reference too many Secrets; ignoring the Secrets above the limit"
                );
            }
            self.store.set_unwatched(unwatched);
            for name in wanted {
                if let Entry::Vacant(entry) = running.entry(name) {
                    let (stop, stopped) = oneshot::channel();
                    let name = entry.key().clone();
                    watches.push(self.follow_secret(name, stopped, changed));
                    entry.insert(stop);
                }
            }
            tokio::select! {
                () = changed.notified() => {}
                Some(()) = watches.next() => {}
            }
        }
    }

    async fn follow_secret(&self, name: String, stopped: oneshot::Receiver<()>, changed: &Notify) {
        tokio::select! {
            // The selection is biased, so that no further events are handled after a stop.
            biased;
            _ = stopped => {}
            () = self.follow(Source::Secret(name), changed) => {}
        }
    }

    /// Writes the first account of each cluster to its `KubeletAuthentication`.
    pub async fn write_accounts(&self, mut accounts: mpsc::UnboundedReceiver<(ObjectKey, String)>) {
        let mut writes = FuturesUnordered::new();
        // Each cluster has at most one task. A Cluster can be created again many times, and get an account each time.
        // Each attempt to write the account can fail as long as the object exists.
        let mut running: BTreeMap<ObjectKey, AbortHandle> = BTreeMap::new();
        loop {
            tokio::select! {
                Some((cluster, account)) = accounts.recv() => {
                    let (write, handle) = abortable(self.write_account(cluster.clone(), account));
                    let ended = cluster.clone();
                    writes.push(write.map(|written| written.ok().map(|()| ended)));
                    if let Some(former) = running.insert(cluster, handle) {
                        former.abort();
                    }
                }
                Some(ended) = writes.next() => {
                    if let Some(cluster) = ended {
                        running.remove(&cluster);
                    }
                }
                else => return,
            }
        }
    }

    /// Retries until the annotation exists, or its object no longer exists. An existing account is kept.
    async fn write_account(&self, cluster: ObjectKey, account: String) {
        const MESSAGE: &str = "cannot record the AWS account of the cluster";
        let (mut failures, mut pause) = (Failures::default(), WRITE_AGAIN.first);
        loop {
            let error = match timeout(CALL, self.annotate(&cluster, &account)).await {
                Ok(Ok(())) => return,
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return,
                Ok(Err(error)) => error_chain(&error),
                Err(_) => "no response in time".to_owned(),
            };
            if failures.is_first() {
                cluster_line!(&ClusterLines::of(&cluster), WARN, error, "{MESSAGE}");
            } else {
                tracing::debug!(%cluster, error, "{MESSAGE}");
            }
            sleep(pause).await;
            pause = WRITE_AGAIN.following(pause);
        }
    }

    async fn annotate(&self, cluster: &ObjectKey, account: &str) -> Result<(), kube::Error> {
        let api: Api<KubeletAuthentication> =
            Api::namespaced(self.client.clone(), &cluster.namespace);
        let Some(found) = metadata_of_one(&api, &cluster.name).await? else {
            return Ok(());
        };
        if found.annotations().contains_key(AWS_ACCOUNT_ANNOTATION) {
            return Ok(());
        }
        // The patch applies only to this version, because another replica can write an account concurrently.
        let patch = json!({"metadata": {
            "resourceVersion": found.resource_version(),
            "annotations": {AWS_ACCOUNT_ANNOTATION: account},
        }});
        let params = PatchParams::apply(CONTROLLER);
        let patch = Patch::Merge(patch);
        patched_metadata(&api, &cluster.name, &params, &patch).await
    }
}

/// The part of the store that a watch fills.
#[derive(Clone, Copy)]
struct Filled<'a> {
    store: &'a IdentityStore,
    source: &'a Source,
    changed: &'a Notify,
}

impl Filled<'_> {
    /// Runs a watch until its kind is no longer served. The watch recovers from all other errors.
    async fn follow<K, R>(
        self,
        events: impl Stream<Item = watcher::Result<Event<Lenient<K, R>>>>,
        log: &mut WatchLog,
        put: impl Fn(&ObjectKey, Option<&Lenient<K, R>>) -> Result<(), Unreadable>,
    ) where
        Lenient<K, R>: ResourceExt,
    {
        let Self {
            store,
            source,
            changed,
        } = self;
        let (mut events, mut listed) = (pin!(events), BTreeSet::new());
        let mut skipped = Skipped::new(source.kind());
        let mut seen = |object: &Lenient<K, R>| {
            let key = key_of(object);
            if let Err(error) = put(&key, Some(object)) {
                skipped.note(&object.metadata, &error);
            }
            key
        };
        while let Some(event) = events.next().await {
            log.observe(&event, || {});
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    let key = seen(&object);
                    if store.keeps(source, &key) {
                        listed.insert(key);
                    }
                }
                Ok(Event::InitDone) => {
                    store.retain(source, &listed);
                    store.read(source);
                    changed.notify_one();
                    listed.clear();
                }
                Ok(Event::Apply(object)) => drop(seen(&object)),
                Ok(Event::Delete(object)) => drop(put(&key_of(&object), None)),
                Err(error) => {
                    store.failed(source);
                    if is_gone(&error) {
                        return;
                    }
                }
            }
        }
    }
}

/// Service account tokens from the management cluster.
#[derive(derive_more::Debug, Clone)]
#[debug("KubeTokens")]
pub struct KubeTokens {
    client: Client,
}

impl KubeTokens {
    /// Creates tokens in `client`'s cluster. The client's user needs permission to create `serviceaccounts/token`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

#[async_trait::async_trait]
impl Tokens for KubeTokens {
    async fn token(&self, account: &ServiceAccount) -> Result<SecretValue<String>, TokenError> {
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: account.audiences.clone(),
                expiration_seconds: i64::try_from(account.token_validity.as_secs()).ok(),
                bound_object_ref: None,
            },
            ..TokenRequest::default()
        };
        let asked = (account.namespace.as_str(), account.name.as_str());
        let answer = timeout(CALL, token_text(&self.client, asked, &request)).await;
        let answer = answer.map_err(|_| TokenError::TimedOut)?;
        let answer = answer.map_err(|error| TokenError::Call(error.into()))?;
        // The parser's error can contain a part of the token.
        let answer = serde_json::from_str::<TokenRequest>(&answer).ok();
        let status = answer.and_then(|answer| answer.status);
        let status = status.ok_or(TokenError::Missing)?;
        Ok(SecretValue::new(status.token))
    }
}

#[cfg(test)]
mod tests;
