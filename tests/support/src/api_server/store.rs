//! Objects with their versions, and the history for watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::resource::{BUILT_IN, Resource, Target};
use super::status::Refusal;
use super::timestamp;

/// The type of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    Added,
    Modified,
    Deleted,
}

impl Happened {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// A change to an object.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) happened: Happened,
    pub(super) resource: &'static Resource,
    pub(super) object: Arc<Value>,
    /// The object before the change, if it existed.
    before: Option<Arc<Value>>,
}

impl Change {
    /// The change as a watch with this selection reports it. An object that starts to match is reported as added, and
    /// an object that stops matching as deleted.
    fn seen_by(&self, selection: &Selection) -> Option<Self> {
        if !self.resource.is_same(selection.resource) {
            return None;
        }
        let now = self.happened != Happened::Deleted && selection.matches(&self.object);
        let before = self
            .before
            .as_ref()
            .is_some_and(|object| selection.matches(object));
        let happened = match (before, now) {
            (false, false) => return None,
            (false, true) => Happened::Added,
            (true, true) => Happened::Modified,
            (true, false) => Happened::Deleted,
        };
        Some(Self {
            happened,
            ..self.clone()
        })
    }
}

type Key = (&'static str, &'static str, String, String);

/// All objects and their complete history.
#[derive(Debug)]
pub(super) struct Store {
    version: u64,
    compacted: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    history: Vec<Change>,
    latest: watch::Sender<u64>,
    resources: Vec<&'static Resource>,
}

impl Store {
    pub(super) fn new() -> Self {
        // A real server has written a few hundred objects before the first request.
        let version = 300;
        Self {
            version,
            compacted: version,
            objects: BTreeMap::new(),
            history: Vec::new(),
            latest: watch::Sender::new(version),
            resources: BUILT_IN.to_vec(),
        }
    }

    /// All kinds that the server serves.
    pub(super) fn resources(&self) -> &[&'static Resource] {
        &self.resources
    }

    /// Adds a kind.
    pub(super) fn define(&mut self, resource: &'static Resource) {
        self.resources.push(resource);
    }

    /// The version of the last change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// A receiver of [`Store::version`].
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// Deletes the history of changes. Requests for an older `resourceVersion` get 410.
    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.history.clear();
    }

    pub(super) fn get(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Value>, Refusal> {
        self.objects
            .get(&key(resource, namespace, name))
            .cloned()
            .ok_or_else(|| Refusal::not_found(resource, name))
    }

    /// Stores a new object under its own name, with the fields that the server sets.
    pub(super) fn create(
        &mut self,
        resource: &'static Resource,
        mut object: Value,
    ) -> Result<Arc<Value>, Refusal> {
        let (namespace, name) = names(&object);
        let key = key(resource, &namespace, &name);
        if self.objects.contains_key(&key) {
            return Err(Refusal::already_exists(resource, &name));
        }
        object["metadata"]["uid"] = super::random_uid().into();
        object["metadata"]["creationTimestamp"] = timestamp(crate::clock::now()).into();
        Ok(self.record(resource, key, object, Happened::Added))
    }

    /// Replaces the object with the same name. Has no effect if the objects are equal.
    pub(super) fn replace(&mut self, resource: &'static Resource, object: Value) -> Arc<Value> {
        let (namespace, name) = names(&object);
        let key = key(resource, &namespace, &name);
        match self.objects.get(&key) {
            Some(stored) if **stored == object => stored.clone(),
            Some(_) => self.record(resource, key, object, Happened::Modified),
            None => self.record(resource, key, object, Happened::Added),
        }
    }

    pub(super) fn delete(
        &mut self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Value>, Refusal> {
        let before = self
            .objects
            .remove(&key(resource, namespace, name))
            .ok_or_else(|| Refusal::not_found(resource, name))?;
        let mut object = (*before).clone();
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Arc::new(object);
        self.publish(resource, Happened::Deleted, object.clone(), Some(before));
        Ok(object)
    }

    pub(super) fn list(&self, selection: &Selection) -> Vec<Arc<Value>> {
        let first = key(selection.resource, &selection.namespace, "");
        self.objects
            .range(first..)
            .take_while(|((group, plural, ..), _)| {
                (*group, *plural) == (selection.resource.group, selection.resource.plural)
            })
            .filter(|(_, object)| selection.matches(object))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// The changes to the selected objects after `version`.
    pub(super) fn changes(
        &self,
        selection: &Selection,
        version: u64,
    ) -> Result<Vec<Change>, Refusal> {
        if version < self.compacted {
            return Err(Refusal::expired(version, self.compacted));
        }
        let from = self
            .history
            .partition_point(|change| change.version <= version);
        let later = self.history.get(from..).unwrap_or_default();
        Ok(later
            .iter()
            .filter_map(|change| change.seen_by(selection))
            .collect())
    }

    fn record(
        &mut self,
        resource: &'static Resource,
        key: Key,
        mut object: Value,
        happened: Happened,
    ) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        object["kind"] = resource.kind.into();
        object["apiVersion"] = resource.api_version().into();
        let object = Arc::new(object);
        let before = self.objects.insert(key, object.clone());
        self.publish(resource, happened, object.clone(), before);
        object
    }

    fn publish(
        &mut self,
        resource: &'static Resource,
        happened: Happened,
        object: Arc<Value>,
        before: Option<Arc<Value>>,
    ) {
        self.history.push(Change {
            version: self.version,
            happened,
            resource,
            object,
            before,
        });
        self.latest.send_replace(self.version);
    }
}

/// The objects that a list or a watch selects.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    pub(super) resource: &'static Resource,
    namespace: String,
    fields: Vec<(String, String, bool)>,
    labels: Vec<(String, String)>,
}

impl Selection {
    /// Parses the namespace, the field selector and the label selector (only equalities).
    pub(super) fn parse(resource: &'static Resource, target: &Target) -> Result<Self, Refusal> {
        let mut fields = Vec::new();
        for term in terms(target.parameter("fieldSelector")) {
            let (field, value, equal) = match term.split_once("!=") {
                Some((field, value)) => (field, value, false),
                None => {
                    let Some((field, value)) = term.split_once('=') else {
                        let message = format!("invalid selector: '{term}'; can't understand it");
                        return Err(Refusal::bad_request(&message));
                    };
                    (field, value.trim_start_matches('='), true)
                }
            };
            if !resource.fields.contains(&field) {
                let message = format!("field label not supported: {field}");
                return Err(Refusal::bad_request(&message));
            }
            fields.push((field.to_owned(), value.to_owned(), equal));
        }
        let labels = terms(target.parameter("labelSelector"))
            .filter_map(|term| term.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.trim_start_matches('=').to_owned()))
            .collect();
        Ok(Self {
            resource,
            namespace: target.namespace.clone(),
            fields,
            labels,
        })
    }

    /// Selects all objects of one kind.
    pub(super) fn everything(resource: &'static Resource) -> Self {
        Self {
            resource,
            namespace: String::new(),
            fields: Vec::new(),
            labels: Vec::new(),
        }
    }

    fn matches(&self, object: &Value) -> bool {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let in_namespace =
            self.namespace.is_empty() || text(&object["metadata"]["namespace"]) == self.namespace;
        in_namespace
            && self.fields.iter().all(|(field, value, equal)| {
                let found = field.split('.').fold(object, |object, part| &object[part]);
                (text(found) == *value) == *equal
            })
            && self
                .labels
                .iter()
                .all(|(key, value)| text(&object["metadata"]["labels"][key]) == *value)
    }
}

fn terms(selector: Option<&str>) -> impl Iterator<Item = &str> {
    selector
        .unwrap_or_default()
        .split(',')
        .filter(|term| !term.is_empty())
}

fn key(resource: &'static Resource, namespace: &str, name: &str) -> Key {
    (
        resource.group,
        resource.plural,
        namespace.to_owned(),
        name.to_owned(),
    )
}

fn names(object: &Value) -> (String, String) {
    let text = |field: &str| {
        object["metadata"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (text("namespace"), text("name"))
}

/// The requested page of a list, in the format of the API server. A page starts after the objects of the previous
/// pages, and all pages have the version of the first page.
pub(super) fn page(
    resource: &Resource,
    version: u64,
    items: &[Arc<Value>],
    target: &Target,
) -> Value {
    let next = target.parameter("continue").and_then(|next| {
        let (version, from) = next.split_once('.')?;
        Some((version.parse().ok()?, from.parse().ok()?))
    });
    let (version, from): (u64, usize) = next.unwrap_or((version, 0));
    let from = from.min(items.len());
    let limit = target.parameter("limit");
    let limit: Option<usize> = limit.and_then(|text| text.parse().ok());
    let limit = limit.filter(|limit| *limit > 0);
    let to = limit.map_or(items.len(), |limit| items.len().min(from + limit));
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if to < items.len() {
        metadata["continue"] = format!("{version}.{to}").into();
    }
    let items = items[from..to].iter().map(|item| resource.show(item));
    json!({
        "kind": format!("{}List", resource.kind),
        "apiVersion": resource.api_version(),
        "metadata": metadata,
        "items": items.collect::<Vec<Value>>(),
    })
}
