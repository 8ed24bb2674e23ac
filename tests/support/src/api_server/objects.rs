//! Direct access to objects of any kind, without any checks.

use serde_json::Value;

use super::resource::Resource;
use super::store::Selection;
use super::{ApiServer, lock};

/// A kind of object for the server to serve, in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    group: String,
    version: String,
    kind: String,
    plural: String,
    namespaced: bool,
    status: bool,
}

impl Definition {
    /// A namespaced kind without subresources.
    pub fn new(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced: true,
            status: false,
        }
    }

    /// The served versions of a CustomResourceDefinition. Schemas are ignored.
    pub fn of_crd(crd: &Value) -> Vec<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &crd["spec"];
        let versions = spec["versions"].as_array().into_iter().flatten();
        versions
            .filter(|version| version["served"] == true)
            .map(|version| Self {
                group: text(&spec["group"]),
                version: text(&version["name"]),
                kind: text(&spec["names"]["kind"]),
                plural: text(&spec["names"]["plural"]),
                namespaced: spec["scope"] == "Namespaced",
                status: version["subresources"]["status"].is_object(),
            })
            .collect()
    }

    /// Adds the status subresource to the kind.
    pub fn with_status(mut self) -> Self {
        self.status = true;
        self
    }

    /// Leaks the kind, because objects, watches and selections refer to it until the process ends.
    fn leak(self) -> &'static Resource {
        let leak = |text: String| &*text.leak();
        Box::leak(Box::new(Resource {
            group: leak(self.group),
            version: leak(self.version),
            plural: leak(self.plural),
            kind: leak(self.kind),
            namespaced: self.namespaced,
            custom: true,
            subresources: if self.status { &["status"] } else { &[] },
            fields: &["metadata.name", "metadata.namespace"],
        }))
    }
}

impl ApiServer {
    /// Serves an additional kind, with the rules for custom resources, but without schemas: the status can be written
    /// only through its subresource, the server counts generations, and a replacement must contain a `resourceVersion`.
    ///
    /// The versions of a kind share its objects, which are returned without conversion.
    pub fn define(&self, definition: Definition) {
        lock(&self.shared.state).store.define(definition.leak());
    }

    /// Stores an object unchanged, replaces an object with the same name, and returns the stored object.
    ///
    /// # Panics
    ///
    /// Panics if no such kind is served.
    #[track_caller]
    pub fn put(&self, mut object: Value) -> Value {
        let resource = self.kind_of(&object["apiVersion"], &object["kind"]);
        let store = &mut lock(&self.shared.state).store;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let stored = match store.get(resource, &namespace, &name) {
            Ok(old) => {
                for field in ["uid", "creationTimestamp"] {
                    object["metadata"][field] = old["metadata"][field].clone();
                }
                // Without this check, equal objects would differ in their version.
                object["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
                store.replace(resource, object)
            }
            Err(_) => store
                .create(resource, object)
                .expect("no other resource has its name"),
        };
        (*stored).clone()
    }

    /// Returns an object. The namespace is empty if the kind is cluster-scoped.
    #[track_caller]
    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let resource = self.resource(plural);
        let state = lock(&self.shared.state);
        let found = state.store.get(resource, namespace, name).ok()?;
        Some((*found).clone())
    }

    /// All objects of the kind with this plural name. Events have the plural name from the core group.
    ///
    /// # Panics
    ///
    /// Panics if no such kind is served.
    #[track_caller]
    pub fn all(&self, plural: &str) -> Vec<Value> {
        let resource = self.resource(plural);
        let state = lock(&self.shared.state);
        let found = state.store.list(&Selection::everything(resource));
        found.iter().map(|object| (**object).clone()).collect()
    }

    /// Deletes an object, with or without finalizers.
    #[track_caller]
    pub fn remove(&self, plural: &str, namespace: &str, name: &str) {
        let resource = self.resource(plural);
        // The object might already be deleted.
        let _ = lock(&self.shared.state)
            .store
            .delete(resource, namespace, name);
    }

    #[track_caller]
    fn resource(&self, plural: &str) -> &'static Resource {
        self.find(|resource| resource.plural == plural)
            .unwrap_or_else(|| panic!("no {plural} are served: define them"))
    }

    #[track_caller]
    fn kind_of(&self, api_version: &Value, kind: &Value) -> &'static Resource {
        self.find(|resource| *api_version == resource.api_version() && *kind == resource.kind)
            .unwrap_or_else(|| panic!("no {api_version} {kind} is served: define it"))
    }

    fn find(&self, is_it: impl Fn(&Resource) -> bool) -> Option<&'static Resource> {
        let state = lock(&self.shared.state);
        let mut resources = state.store.resources().iter().copied();
        resources.find(|resource| is_it(resource))
    }
}
