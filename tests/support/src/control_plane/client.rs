//! Calls to the API server from this process. These calls take milliseconds, while a kubectl call takes almost a second
//! on a busy machine.

use std::fmt::Display;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::time::Duration;

use futures::TryStreamExt;
use kube::api::{
    Api, ApiResource, DynamicObject, GetParams, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams, Request, WatchEvent, WatchParams,
};
use kube::client::{APIGroupDiscovery, APIResourceDiscovery};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Config, Resource as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use super::watch::Event;

/// The deadline for a single call.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The runtime for all clients in the process: tests either have no runtime, or have a runtime that must not be
/// blocked.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a thread can be started")
});

/// The resources of an API server, which all its clients share.
pub(super) type Served = Arc<Mutex<Vec<Resource>>>;

/// A resource and its names in kubectl.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    api: ApiResource,
    namespaced: bool,
    singular: String,
    short: Vec<String>,
}

/// The selected objects: a single object, or a list.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    resource: Resource,
    namespace: Option<String>,
    name: Option<String>,
    labels: Option<String>,
    fields: Option<String>,
    managed_fields: bool,
}

/// The result of a call. The error is from the API server, or reports that the API server did not respond.
pub(super) type Answer<T> = Result<T, String>;

/// A client for one user of one API server.
#[derive(Clone)]
pub(super) struct Client {
    kube: kube::Client,
    served: Served,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// Creates a client with the credentials of this kubeconfig. `None` if the kubeconfig refers to a plugin or to
    /// files, whose content might change before the next call.
    pub(super) fn new(kubeconfig: &Path, served: Served) -> Option<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).ok()?;
        let by_itself = kubeconfig.auth_infos.iter().all(|named| {
            named.auth_info.as_ref().is_none_or(|user| {
                user.exec.is_none()
                    && user.token_file.is_none()
                    && user.client_certificate.is_none()
            })
        });
        if !by_itself {
            return None;
        }
        let kube = block(async move {
            let options = KubeConfigOptions::default();
            let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .ok()?;
            // A proxy in the environment is ignored, because the API server is on loopback.
            config.proxy_url = None;
            kube::Client::try_from(config).ok()
        })?;
        Some(Self { kube, served })
    }

    /// The objects that the arguments of `kubectl get` select. `None` if only kubectl supports the arguments.
    pub(super) fn select(&self, words: &[&str]) -> Option<Selection> {
        let mut plain = Vec::new();
        let (mut namespace, mut everywhere, mut managed_fields) = (None, false, false);
        let (mut labels, mut fields) = (None, None);
        let words = words.iter().flat_map(|word| match word.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => [Some(flag), Some(value)],
            _ => [Some(*word), None],
        });
        let mut words = words.flatten();
        while let Some(word) = words.next() {
            match word {
                "-n" | "--namespace" => namespace = Some(words.next()?.to_owned()),
                "-l" | "--selector" => labels = Some(words.next()?.to_owned()),
                "--field-selector" => fields = Some(words.next()?.to_owned()),
                "-A" | "--all-namespaces" => everywhere = true,
                "--show-managed-fields" => managed_fields = true,
                word if word.starts_with('-') => return None,
                word => plain.push(word),
            }
        }
        let (resource, name) = match plain[..] {
            [both] => both
                .split_once('/')
                .map_or((both, None), |(resource, name)| (resource, Some(name))),
            [resource, name] => (resource, Some(name)),
            _ => return None,
        };
        let resource = self.resource(|candidate| candidate.is_called(resource))?;
        Some(Selection {
            namespace: (!everywhere).then(|| namespace.unwrap_or_else(default_namespace)),
            resource,
            name: name.map(str::to_owned),
            labels,
            fields,
            managed_fields,
        })
    }

    /// The path at which this object is in the API after its creation. `None` if its kind is not served.
    pub(super) fn place(&self, object: &Value) -> Option<Selection> {
        let resource = self.resource(|candidate| {
            object["apiVersion"] == candidate.api.api_version
                && object["kind"] == candidate.api.kind
        })?;
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().map(str::to_owned);
        Some(Selection {
            namespace: Some(namespace.unwrap_or_else(default_namespace)),
            resource,
            name: Some(metadata["name"].as_str()?.to_owned()),
            labels: None,
            fields: None,
            managed_fields: false,
        })
    }

    /// Returns the object, or the list, in the form that kubectl prints.
    pub(super) fn get(&self, selection: &Selection) -> Answer<Value> {
        let mut found = self.call(match &selection.name {
            Some(name) => selection.request().get(name, &GetParams::default()),
            None => selection.request().list(&selection.list()),
        })?;
        if selection.name.is_some() {
            selection.complete(&mut found);
        } else {
            let items = found["items"].as_array_mut();
            items
                .into_iter()
                .flatten()
                .for_each(|item| selection.complete(item));
        }
        Ok(found)
    }

    /// Creates the object at its path in the API.
    pub(super) fn create(&self, place: &Selection, object: &Value, manager: &str) -> Answer<Value> {
        let parameters = PostParams {
            field_manager: Some(manager.to_owned()),
            ..PostParams::default()
        };
        let mut created = self.call(
            place
                .request()
                .create(&parameters, object.to_string().into()),
        )?;
        place.complete(&mut created);
        Ok(created)
    }

    /// Returns the object as the API server would store it, without storing it (dry run).
    pub(super) fn try_create(&self, place: &Selection, object: &Value) -> Answer<Value> {
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let request = place.request();
        let mut created = self.call(request.create(&parameters, object.to_string().into()))?;
        place.complete(&mut created);
        Ok(created)
    }

    /// Returns the object as the API server would store it after it has applied this object (dry run).
    pub(super) fn try_apply(&self, place: &Selection, object: &Value) -> Answer<Value> {
        let parameters = PatchParams::apply("kubectl").force().dry_run();
        let mut applied = self.patch(place, None, &parameters, &Patch::Apply(object))?;
        place.complete(&mut applied);
        Ok(applied)
    }

    /// Merges `patch` into the object, or into its subresource.
    pub(super) fn merge(
        &self,
        place: &Selection,
        subresource: Option<&str>,
        patch: &Value,
    ) -> Answer<Value> {
        let parameters = PatchParams {
            field_manager: Some("kubectl-patch".to_owned()),
            ..PatchParams::default()
        };
        self.patch(place, subresource, &parameters, &Patch::Merge(patch))
    }

    /// Applies the object, or its subresource, on the server, overriding other appliers.
    pub(super) fn apply(
        &self,
        place: &Selection,
        subresource: Option<&str>,
        object: &Value,
    ) -> Answer<Value> {
        let parameters = PatchParams::apply("kubectl").force();
        self.patch(place, subresource, &parameters, &Patch::Apply(object))
    }

    fn patch(
        &self,
        place: &Selection,
        subresource: Option<&str>,
        parameters: &PatchParams,
        patch: &Patch<&Value>,
    ) -> Answer<Value> {
        let name = place.name.clone().unwrap_or_default();
        let request = place.request();
        self.call(match subresource {
            Some(subresource) => request.patch_subresource(subresource, &name, parameters, patch),
            None => request.patch(&name, parameters, patch),
        })
    }

    /// Returns the response to a `GET` request for this path, as text.
    pub(super) fn raw(&self, path: &str) -> Answer<String> {
        let request = hyper::Request::get(path).body(Vec::new());
        let (kube, request) = (self.kube.clone(), request.map_err(said)?);
        block(limited(async move {
            kube.request_text(request).await.map_err(said)
        }))
    }

    /// Returns the API server's answer to a review. A review is an object that the API server answers and does not
    /// store.
    pub(super) fn review<K>(&self, review: K) -> Answer<K>
    where
        K: kube::Resource<DynamicType = ()> + Serialize + DeserializeOwned,
        K: Clone + std::fmt::Debug + Send + Sync + 'static,
    {
        let api = Api::all(self.kube.clone());
        block(limited(async move {
            let answer = api.create(&PostParams::default(), &review).await;
            answer.map_err(said)
        }))
    }

    /// Sends the changes to the objects, starting with the existing objects. The stream ends when the watch ends. An
    /// error is the reason for the end.
    pub(super) fn watch(
        &self,
        selection: &Selection,
        told: mpsc::Sender<Answer<Event>>,
    ) -> AbortHandle {
        let (client, selection) = (self.clone(), selection.clone());
        let task = async move {
            if let Err(error) = client.tell(&selection, &told).await {
                told.send(Err(error)).ok();
            }
        };
        RUNTIME.spawn(task).abort_handle()
    }

    /// Lists and then watches the objects, while the receiver exists and the API server continues the watch.
    async fn tell(&self, selection: &Selection, told: &mpsc::Sender<Answer<Event>>) -> Answer<()> {
        let list = selection.request().list(&selection.list()).map_err(said)?;
        let list = async { self.kube.request::<Value>(list).await.map_err(said) };
        let mut list = limited(list).await?;
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        let watch = selection
            .request()
            .watch(&selection.watch(), version)
            .map_err(said)?;
        let tell = |mut object: Value, deleted| {
            selection.complete(&mut object);
            told.send(Ok(Event { object, deleted })).map_err(said)
        };
        for item in list["items"].as_array_mut().into_iter().flatten() {
            tell(item.take(), false)?;
        }
        let changes = self.kube.request_events(watch).await.map_err(said)?;
        let mut changes = std::pin::pin!(changes);
        while let Some(change) = changes.try_next().await.map_err(said)? {
            match change {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => tell(object, false)?,
                WatchEvent::Deleted(object) => tell(object, true)?,
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => return Err(status.to_string()),
            }
        }
        Ok(())
    }

    fn call<E: Display>(&self, request: Result<hyper::Request<Vec<u8>>, E>) -> Answer<Value> {
        let (kube, request) = (self.kube.clone(), request.map_err(said)?);
        block(limited(async move {
            // The server might close the connection while a request is sent. A read request can be sent again.
            let again = (request.method() == hyper::Method::GET).then(|| request.clone());
            let answer = match (kube.request(request).await, again) {
                (Err(kube::Error::Service(_)), Some(again)) => kube.request(again).await,
                (answer, _) => answer,
            };
            answer.map_err(said)
        }))
    }

    /// The first resource that satisfies `wanted`. If there is none, the resources are discovered again.
    fn resource(&self, wanted: impl Fn(&Resource) -> bool) -> Option<Resource> {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if !served.iter().any(&wanted) {
            let kube = self.kube.clone();
            *served = block(limited(async move { discover(&kube).await.map_err(said) })).ok()?;
        }
        served.iter().find(|resource| wanted(resource)).cloned()
    }
}

/// The resources of all groups. The versions of each group are in the order of preference.
async fn discover(kube: &kube::Client) -> kube::Result<Vec<Resource>> {
    let core = kube.list_core_api_versions_aggregated().await?;
    let groups = kube.list_api_groups_aggregated().await?;
    let groups = core.items.into_iter().chain(groups.items);
    Ok(groups.flat_map(resources_of).collect())
}

fn resources_of(group: APIGroupDiscovery) -> impl Iterator<Item = Resource> {
    let name = group
        .metadata
        .and_then(|metadata| metadata.name)
        .unwrap_or_default();
    group.versions.into_iter().flat_map(move |version| {
        let (name, of) = (name.clone(), version.version.unwrap_or_default());
        let resources = version.resources.into_iter();
        resources.filter_map(move |resource| Resource::new(&name, &of, resource))
    })
}

impl Resource {
    fn new(group: &str, version: &str, served: APIResourceDiscovery) -> Option<Self> {
        let kind = served.response_kind?.kind?;
        let plural = served.resource?;
        let kind = GroupVersionKind::gvk(group, version, &kind);
        Some(Self {
            api: ApiResource::from_gvk_with_plural(&kind, &plural),
            namespaced: served.scope.as_deref() == Some("Namespaced"),
            singular: served.singular_resource.unwrap_or_default(),
            short: served.short_names,
        })
    }

    /// Whether kubectl accepts this word for the resource: the plural, the singular, a short name, or the plural with
    /// the group.
    fn is_called(&self, word: &str) -> bool {
        let Self {
            api,
            singular,
            short,
            ..
        } = self;
        [&api.plural, singular]
            .into_iter()
            .chain(short)
            .any(|name| name == word)
            || word.split_once('.') == Some((&api.plural, &api.group))
    }
}

impl Selection {
    fn request(&self) -> Request {
        let namespace = self
            .namespace
            .as_deref()
            .filter(|_| self.resource.namespaced);
        Request::new(DynamicObject::url_path(&self.resource.api, namespace))
    }

    fn list(&self) -> ListParams {
        ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields(),
            ..ListParams::default()
        }
    }

    fn watch(&self) -> WatchParams {
        WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields(),
            ..WatchParams::default()
        }
    }

    fn fields(&self) -> Option<String> {
        let named = self
            .name
            .as_ref()
            .map(|name| format!("metadata.name={name}"));
        self.fields.clone().or(named)
    }

    /// Adds the fields that a list item does not contain, and removes the fields that kubectl does not print.
    fn complete(&self, object: &mut Value) {
        if object["kind"].is_null() {
            object["apiVersion"] = json!(self.resource.api.api_version);
            object["kind"] = json!(self.resource.api.kind);
        }
        let metadata = object["metadata"].as_object_mut();
        if let Some(metadata) = metadata.filter(|_| !self.managed_fields) {
            metadata.remove("managedFields");
        }
    }
}

fn default_namespace() -> String {
    "default".to_owned()
}

fn said(error: impl Display) -> String {
    error.to_string()
}

async fn limited<T>(call: impl Future<Output = Answer<T>>) -> Answer<T> {
    let answer = tokio::time::timeout(TIMEOUT, call).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))
}

/// Runs the task, and blocks the calling thread until the task ends.
fn block<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    RUNTIME.spawn(async move { sender.send(task.await).ok() });
    receiver.recv().expect("a task that does not panic")
}
