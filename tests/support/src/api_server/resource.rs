//! The server's resources, and the resource in a request's path.

use hyper::Method;
use serde_json::Value;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resource {
    /// The API group. Empty for the core group.
    pub(super) group: &'static str,
    /// The version, as in a path.
    pub(super) version: &'static str,
    /// The plural name, as in a path.
    pub(super) plural: &'static str,
    /// The kind.
    pub(super) kind: &'static str,
    /// Whether the resource's objects are in namespaces.
    pub(super) namespaced: bool,
    /// Whether a test defined the resource. If it did, the rules for custom resources apply.
    pub(super) custom: bool,
    /// The resource's subresources.
    pub(super) subresources: &'static [&'static str],
    /// The fields that a field selector can contain.
    pub(super) fields: &'static [&'static str],
}

const CERTIFICATES: &str = "certificates.k8s.io";

pub(super) static REQUESTS: Resource = Resource {
    group: CERTIFICATES,
    version: "v1",
    plural: "certificatesigningrequests",
    kind: "CertificateSigningRequest",
    namespaced: false,
    custom: false,
    subresources: &["approval", "status"],
    fields: &["metadata.name", "spec.signerName"],
};

pub(super) static NODES: Resource = Resource {
    group: "",
    version: "v1",
    plural: "nodes",
    kind: "Node",
    namespaced: false,
    custom: false,
    subresources: &["status"],
    fields: &["metadata.name"],
};

pub(super) static LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    kind: "Lease",
    namespaced: true,
    custom: false,
    subresources: &[],
    fields: &["metadata.name", "metadata.namespace"],
};

/// Events in the core group.
pub(super) static CORE_EVENTS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "events",
    kind: "Event",
    namespaced: true,
    custom: false,
    subresources: &[],
    fields: &[
        "metadata.name",
        "metadata.namespace",
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
    ],
};

/// Events in their own group.
pub(super) static EVENTS: Resource = Resource {
    group: "events.k8s.io",
    version: "v1",
    plural: "events",
    kind: "Event",
    namespaced: true,
    custom: false,
    subresources: &[],
    fields: &["metadata.name", "metadata.namespace", "reason"],
};

pub(super) static SECRETS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "secrets",
    kind: "Secret",
    namespaced: true,
    custom: false,
    subresources: &[],
    fields: &["metadata.name", "metadata.namespace"],
};

/// Every resource that the server serves from its start.
pub(super) static BUILT_IN: [&Resource; 6] =
    [&REQUESTS, &NODES, &LEASES, &CORE_EVENTS, &EVENTS, &SECRETS];

impl Resource {
    /// `version` or `group/version`.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.into()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Whether both resources contain the same objects, possibly in different versions.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.group, self.plural) == (other.group, other.plural)
    }

    /// An object in this version.
    pub(super) fn show(&self, object: &Value) -> Value {
        let mut object = object.clone();
        object["apiVersion"] = self.api_version().into();
        object
    }

    /// The name in messages: `plural` or `plural.group`.
    pub(super) fn qualified(&self) -> String {
        qualified(self.plural, self.group)
    }
}

/// The name in messages: `plural` or `plural.group`.
pub(super) fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() {
        plural.into()
    } else {
        format!("{plural}.{group}")
    }
}

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// A POST request to a collection.
    Create,
    /// A GET request for one object, or for a path that does not refer to a resource.
    Get,
    /// A GET request for a collection.
    List,
    /// A GET request for a collection, with `watch`.
    Watch,
    /// The verb PUT.
    Update,
    /// The verb PATCH.
    Patch,
    /// The verb DELETE.
    Delete,
    /// Any other operation.
    Other,
}

impl Verb {
    /// The name of the verb in authorization.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::Other => "other",
        }
    }
}

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) verb: Verb,
    pub(super) path: String,
    /// The API group, if the path refers to a resource.
    pub(super) group: String,
    /// The version, if the path refers to a resource.
    pub(super) version: String,
    /// The plural name. Empty if the path does not refer to a resource.
    pub(super) plural: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) subresource: String,
    pub(super) query: Vec<(String, String)>,
}

impl Target {
    /// Parses the method, the path and the query as kube-apiserver does for its request info.
    pub(super) fn parse(method: &Method, path: &str, query: &str) -> Self {
        let query: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", "v1", rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => ("", "", &[][..]),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        let watch = query
            .iter()
            .any(|(key, value)| key == "watch" && truthy(value));
        let verb = match *method {
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            Method::GET if rest.len() == 1 && watch => Verb::Watch,
            Method::GET if rest.len() == 1 => Verb::List,
            Method::GET => Verb::Get,
            _ => Verb::Other,
        };
        Self {
            verb,
            path: path.to_owned(),
            group: group.to_owned(),
            version: version.to_owned(),
            plural: part(0),
            namespace: namespace.to_owned(),
            name: part(1),
            subresource: part(2),
            query,
        }
    }

    /// A query parameter.
    pub(super) fn parameter(&self, key: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// Whether a query parameter is set to true.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.parameter(key).is_some_and(truthy)
    }

    /// The kind of the target, if it is known.
    pub(super) fn resource(&self, known: &[&'static Resource]) -> Option<&'static Resource> {
        let resource = known.iter().copied().find(|resource| {
            (resource.group, resource.version, resource.plural)
                == (
                    self.group.as_str(),
                    self.version.as_str(),
                    self.plural.as_str(),
                )
        })?;
        let has_part = self.subresource.is_empty()
            || resource.subresources.contains(&self.subresource.as_str());
        has_part.then_some(resource)
    }
}

fn truthy(value: &str) -> bool {
    matches!(value, "true" | "1" | "")
}
