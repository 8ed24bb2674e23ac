//! The kinds of objects that the server keeps, and what a request's path names.

use hyper::Method;

/// A kind of object.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resource {
    /// API group; empty for the core group.
    pub(super) group: &'static str,
    /// Plural name, as paths have it.
    pub(super) plural: &'static str,
    /// Kind.
    pub(super) kind: &'static str,
    /// Whether its objects live in namespaces.
    pub(super) namespaced: bool,
    /// Its subresources.
    pub(super) subresources: &'static [&'static str],
    /// What a field selector may name.
    pub(super) fields: &'static [&'static str],
}

const CERTIFICATES: &str = "certificates.k8s.io";

/// Certificate signing requests.
pub(super) static REQUESTS: Resource = Resource {
    group: CERTIFICATES,
    plural: "certificatesigningrequests",
    kind: "CertificateSigningRequest",
    namespaced: false,
    subresources: &["approval", "status"],
    fields: &["metadata.name", "spec.signerName"],
};

/// Nodes.
pub(super) static NODES: Resource = Resource {
    group: "",
    plural: "nodes",
    kind: "Node",
    namespaced: false,
    subresources: &["status"],
    fields: &["metadata.name"],
};

/// Leases.
pub(super) static LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    plural: "leases",
    kind: "Lease",
    namespaced: true,
    subresources: &[],
    fields: &["metadata.name", "metadata.namespace"],
};

/// Events of the core group.
pub(super) static CORE_EVENTS: Resource = Resource {
    group: "",
    plural: "events",
    kind: "Event",
    namespaced: true,
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

/// Events of their own group.
pub(super) static EVENTS: Resource = Resource {
    group: "events.k8s.io",
    plural: "events",
    kind: "Event",
    namespaced: true,
    subresources: &[],
    fields: &["metadata.name", "metadata.namespace", "reason"],
};

/// Secrets: there to be forbidden.
pub(super) static SECRETS: Resource = Resource {
    group: "",
    plural: "secrets",
    kind: "Secret",
    namespaced: true,
    subresources: &[],
    fields: &["metadata.name", "metadata.namespace"],
};

/// Every kind there is.
pub(super) static ALL: [&Resource; 6] =
    [&REQUESTS, &NODES, &LEASES, &CORE_EVENTS, &EVENTS, &SECRETS];

impl Resource {
    /// `v1` or `group/v1`.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() {
            "v1".into()
        } else {
            format!("{}/v1", self.group)
        }
    }

    /// `plural` or `plural.group`, as messages have it.
    pub(super) fn qualified(&self) -> String {
        qualified(self.plural, self.group)
    }
}

/// `plural` or `plural.group`, as messages have it.
pub(super) fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() {
        plural.into()
    } else {
        format!("{plural}.{group}")
    }
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// POST to a collection.
    Create,
    /// GET of one object, or of a path that is no resource.
    Get,
    /// GET of a collection.
    List,
    /// GET of a collection with `watch`.
    Watch,
    /// PUT.
    Update,
    /// PATCH.
    Patch,
    /// DELETE.
    Delete,
    /// Anything else.
    Other,
}

impl Verb {
    /// As authorization names it.
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

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) verb: Verb,
    pub(super) path: String,
    /// API group, where the path is a resource's.
    pub(super) group: String,
    /// Plural name; empty where the path is no resource's.
    pub(super) plural: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) subresource: String,
    pub(super) query: Vec<(String, String)>,
}

impl Target {
    /// Reads method, path and query as the API server's request info does.
    pub(super) fn parse(method: &Method, path: &str, query: &str) -> Self {
        let query: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, "v1", rest @ ..] => (*group, rest),
            _ => ("", &[][..]),
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
            plural: part(0),
            namespace: namespace.to_owned(),
            name: part(1),
            subresource: part(2),
            query,
        }
    }

    /// A parameter of the query.
    pub(super) fn parameter(&self, key: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// Whether a parameter of the query is set to true.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.parameter(key).is_some_and(truthy)
    }

    /// The kind of object it is about, if the server keeps it.
    pub(super) fn resource(&self) -> Option<&'static Resource> {
        let resource = ALL
            .into_iter()
            .find(|resource| resource.group == self.group && resource.plural == self.plural)?;
        let known = self.subresource.is_empty()
            || resource.subresources.contains(&self.subresource.as_str());
        known.then_some(resource)
    }
}

fn truthy(value: &str) -> bool {
    matches!(value, "true" | "1" | "")
}
