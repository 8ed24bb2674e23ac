//! Decodes objects so that one invalid object does not make all other objects unreadable.
//!
//! kube decodes either the complete list or nothing, and k8s-openapi decodes the whole `metadata`. An API server stores
//! every value that its own types accept: `metadata.managedFields[].time` can be any RFC 3339 time, but times after
//! 9999-12-30T22:00:00Z do not fit into jiff's `Timestamp`. Therefore any user who can write one object could prevent a
//! controller from reading all objects.
//!
//! kube's `DeserializeGuard` is not sufficient. It decodes the metadata of an invalid object, including these times, or
//! fails. It copies every object. Its error also contains the invalid value, which can be a secret.

use std::any::Any;
use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::marker::PhantomData;
use std::mem;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kubelet_attestation::errors::{error_chain, shortened};
use node_attestation_core::cluster_line;
use node_attestation_core::crd::NodeIdentity;
use node_attestation_core::log_lines::LogLines;
use node_attestation_core::rate_limit::Rate;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::{RawValue, Value, to_raw_value};
use tokio::time::Instant;

use crate::client::without_value;
use crate::log_lines::ClusterLines;

/// The rate at which undecodable objects in one namespace are logged. It is limited because a hostile tenant can have
/// an unlimited number of them.
const LINES: Rate = Rate {
    burst: 100,
    every: Duration::from_mins(1),
};

/// For each namespace, the maximum number of logged versions that are remembered, so that a list does not log them
/// again.
const MAX_REMEMBERED: usize = 1000;

/// The maximum number of namespaces with a separate rate. All further namespaces share one rate.
const MAX_NAMESPACES: usize = 10_000;

/// The maximum length of a name in the log, and of a namespace with a separate rate (RFC 1123).
const MAX_NAME_LEN: usize = 253;

/// An object of the resource `R` as the API server returned it, decoded as `K`.
///
/// # Guarantees
///
/// - Any JSON value can be decoded, so an object never makes a list or a watch unreadable.
/// - A valid metadata field that is used is kept, even if the object is invalid. A field with an invalid type counts as
///   missing, but an invalid `deletionTimestamp` counts as present.
/// - An object is unreadable if the client has removed its excess data. The object keeps its name, its namespace, its
///   UID, its versions and its times.
#[derive(Debug, Clone)]
pub struct Lenient<K, R = K> {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The object, or the reason why it does not match its type.
    pub object: Result<K, Unreadable>,
    resource: PhantomData<fn() -> R>,
}

/// The reason why an object cannot be decoded: a parser error without the invalid value, which can be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

impl Unreadable {
    /// Creates an error with this reason.
    pub fn because(reason: &'static str) -> Self {
        Self(reason.to_owned())
    }
}

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Self {
        Self(without_value(&error))
    }
}

type Fields = BTreeMap<String, Box<RawValue>>;

/// The member that the client adds to an object whose excess data it has removed.
const EXCESS_REMOVED: &str = "$excessRemoved";

/// The reason why this object is unreadable. If the object were readable, the remaining part would be treated as the
/// complete object.
const TOO_MANY_VALUES: &str =
    "it has too many values, such as labels, annotations, owners or list entries";

/// The name that makes `serde_json` return a value as text, without a depth limit.
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// Any value as text, even if another deserializer has already decoded the value. This happens if the type in a watch
/// event comes after the object.
struct AnyText;

impl<'de> Visitor<'de> for AnyText {
    type Value = Box<RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Box<RawValue>, A::Error> {
        Box::<RawValue>::deserialize(MapAccessDeserializer::new(map))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Box<RawValue>, D::Error> {
        let value = Value::deserialize(deserializer)?;
        to_raw_value(&value).map_err(D::Error::custom)
    }
}

fn metadata_of(fields: &Fields) -> ObjectMeta {
    fn read<T: DeserializeOwned>(fields: &Fields, name: &str) -> Option<T> {
        serde_json::from_str(fields.get(name)?.get()).ok()?
    }
    let deleting: Option<IgnoredAny> = read(fields, "deletionTimestamp");
    ObjectMeta {
        name: read(fields, "name"),
        namespace: read(fields, "namespace"),
        uid: read(fields, "uid"),
        resource_version: read(fields, "resourceVersion"),
        generation: read(fields, "generation"),
        labels: read(fields, "labels"),
        annotations: read(fields, "annotations"),
        owner_references: read(fields, "ownerReferences"),
        finalizers: read(fields, "finalizers"),
        creation_timestamp: read(fields, "creationTimestamp"),
        deletion_timestamp: deleting
            .map(|_| read(fields, "deletionTimestamp").unwrap_or(Time(Timestamp::UNIX_EPOCH))),
        ..ObjectMeta::default()
    }
}

#[derive(Deserialize)]
struct Metadata {
    metadata: ObjectMeta,
    /// The member [`EXCESS_REMOVED`].
    #[serde(rename = "$excessRemoved")]
    cut: Option<IgnoredAny>,
}

/// The metadata that every object has. Other metadata can be incomplete if the object's excess data was removed.
fn identity_of(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        labels: None,
        annotations: None,
        owner_references: None,
        finalizers: None,
        ..metadata
    }
}

/// The metadata of an object whose type contains all metadata, so that the metadata is not parsed twice. Each join and
/// each renewal reads several objects of these kinds.
fn own_metadata<K: 'static>(object: &K) -> Option<&ObjectMeta> {
    let object: &dyn Any = object;
    let request = object.downcast_ref::<CertificateSigningRequest>();
    let record = object.downcast_ref::<NodeIdentity>();
    let of_request = request.map(|request| &request.metadata);
    of_request.or(record.map(|record| &record.metadata))
}

impl<'de, K: DeserializeOwned + 'static, R> Deserialize<'de> for Lenient<K, R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_newtype_struct(RAW_VALUE, AnyText)?;
        let (metadata, object) = parsed(text.get());
        Ok(Self {
            metadata,
            object,
            resource: PhantomData,
        })
    }
}

/// Parses the metadata of an object, and the object.
fn parsed<K: DeserializeOwned + 'static>(text: &str) -> (ObjectMeta, Result<K, Unreadable>) {
    // Fast path: most objects are valid, so their fields do not need to be parsed separately.
    if let Ok(object) = serde_json::from_str::<K>(text) {
        if let Some(metadata) = own_metadata(&object)
            && !text.contains(EXCESS_REMOVED)
        {
            return (metadata.clone(), Ok(object));
        }
        if let Ok(Metadata {
            metadata,
            cut: None,
        }) = serde_json::from_str(text)
        {
            return (metadata, Ok(object));
        }
    }
    // A value that is not an object has no fields.
    let mut fields: Fields = serde_json::from_str(text).unwrap_or_default();
    let metadata = fields.remove("metadata");
    let metadata = metadata.and_then(|text| serde_json::from_str(text.get()).ok());
    let metadata = metadata_of(&metadata.unwrap_or_default());
    if fields.contains_key(EXCESS_REMOVED) {
        return (
            identity_of(metadata),
            Err(Unreadable::because(TOO_MANY_VALUES)),
        );
    }
    let object = to_raw_value(&metadata).and_then(|text| {
        fields.insert("metadata".to_owned(), text);
        serde_json::from_str(&serde_json::to_string(&fields)?)
    });
    (metadata, object.map_err(Unreadable::from))
}

impl<K: Resource + Clone> Lenient<K> {
    /// The object in the response to a write. If it is unreadable, `known` with the metadata of the response, because
    /// the write was completed.
    pub(crate) fn readable_or(self, known: &K) -> K {
        let Self {
            metadata, object, ..
        } = self;
        object.unwrap_or_else(|_| {
            let mut known = known.clone();
            if metadata.name.is_some() {
                *known.meta_mut() = metadata;
            }
            known
        })
    }
}

impl<K, R: Resource> Resource for Lenient<K, R> {
    type DynamicType = R::DynamicType;
    type Scope = R::Scope;

    fn kind(of: &R::DynamicType) -> Cow<'_, str> {
        R::kind(of)
    }

    fn group(of: &R::DynamicType) -> Cow<'_, str> {
        R::group(of)
    }

    fn version(of: &R::DynamicType) -> Cow<'_, str> {
        R::version(of)
    }

    fn plural(of: &R::DynamicType) -> Cow<'_, str> {
        R::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The undecodable objects of one watch.
///
/// Each object is logged once. Each namespace has a separate rate, so that its objects do not suppress log lines about
/// other namespaces.
#[derive(Debug)]
pub struct Skipped {
    kind: &'static str,
    /// The log lines of the cluster that contains the objects. `None` for objects in the management cluster, for which
    /// each namespace has its own log lines.
    of_cluster: Option<ClusterLines>,
    logged: BTreeMap<String, Logged>,
    hashes: RandomState,
}

/// The logged objects in a namespace, as hashes of UIDs and versions, because a hostile API server controls their
/// lengths.
#[derive(Debug)]
struct Logged {
    lines: ClusterLines,
    full_at: Instant,
    versions: BTreeSet<u64>,
    /// The number of lines that were omitted since the last line.
    left_out: u64,
}

/// A line that has already been taken from the budget.
#[derive(Debug)]
struct Taken<'a>(Option<&'a str>, Option<u64>);

impl LogLines for Taken<'_> {
    fn cluster(&self) -> Option<&str> {
        self.0
    }

    fn take(&self) -> Option<u64> {
        self.1
    }
}

impl Skipped {
    /// Creates an empty set for objects of this kind in the management cluster. Their namespaces determine the rates,
    /// because the management cluster's API server validates the namespaces.
    pub fn new(kind: &'static str) -> Self {
        Self {
            kind,
            of_cluster: None,
            logged: BTreeMap::new(),
            hashes: RandomState::new(),
        }
    }

    /// Creates an empty set for objects of this kind from a cluster's API server. Its tenant can send any namespace, so
    /// all objects count for the cluster.
    pub(crate) fn of_cluster(kind: &'static str, lines: ClusterLines) -> Self {
        Self {
            of_cluster: Some(lines),
            ..Self::new(kind)
        }
    }

    /// Records that this object was skipped.
    pub fn note(&mut self, metadata: &ObjectMeta, error: &dyn Error) {
        self.noted(metadata, error);
    }

    /// Records that this object was skipped. Returns whether a new line about it was logged.
    pub(crate) fn noted(&mut self, metadata: &ObjectMeta, error: &dyn Error) -> bool {
        let Some((lines, left_out)) = self.take(metadata) else {
            return false;
        };
        // The text is truncated, because a tenant's API server can send any text.
        let shown = |text: Option<&String>| {
            shortened(text.map_or("", String::as_str), MAX_NAME_LEN).to_owned()
        };
        let name = shown(metadata.name.as_ref());
        let namespace = shown(metadata.namespace.as_ref());
        let (kind, error) = (self.kind, error_chain(error));
        cluster_line!(
            &Taken(lines.cluster(), left_out),
            ERROR,
            kind,
            namespace,
            name,
            error,
            "cannot use an object"
        );
        left_out.is_some()
    }

    /// Takes a line for this version. Each version gets one line, at the rate of its namespace. Returns the result of
    /// [`LogLines::take`], or `None` if the version already has a line.
    fn take(&mut self, metadata: &ObjectMeta) -> Option<(ClusterLines, Option<u64>)> {
        let version = self
            .hashes
            .hash_one((&metadata.uid, &metadata.resource_version));
        let logged = self.logged(metadata);
        if logged.versions.contains(&version) {
            return None;
        }
        let is_within = LINES.take(&mut logged.full_at, Instant::now()).is_ok();
        let mut left_out = is_within.then(|| logged.lines.take()).flatten();
        if let Some(left_out) = &mut left_out {
            *left_out += mem::take(&mut logged.left_out);
            if logged.versions.len() >= MAX_REMEMBERED {
                logged.versions.clear();
            }
            logged.versions.insert(version);
        } else {
            logged.left_out += 1;
        }
        Some((logged.lines.clone(), left_out))
    }

    /// The logged objects in this object's namespace.
    fn logged(&mut self, metadata: &ObjectMeta) -> &mut Logged {
        let namespace = match self.of_cluster {
            Some(_) => String::new(),
            None => metadata.namespace.clone().unwrap_or_default(),
        };
        let is_known = self.logged.contains_key(&namespace);
        let has_place = self.logged.len() < MAX_NAMESPACES && namespace.len() <= MAX_NAME_LEN;
        let namespace = if is_known || has_place {
            namespace
        } else {
            String::new()
        };
        let of_cluster = self.of_cluster.as_ref();
        match self.logged.entry(namespace) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let of_namespace = || ClusterLines::of_namespace(place.key());
                let logged = Logged {
                    lines: of_cluster.map_or_else(of_namespace, ClusterLines::clone),
                    full_at: Instant::now(),
                    versions: BTreeSet::new(),
                    left_out: 0,
                };
                place.insert(logged)
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "they are of this module"
)]
#[cfg(test)]
mod tests;
