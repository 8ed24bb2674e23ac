//! A case: the objects and the resource. Both feature gates of CARM are on.

use node_attestation_aws::tenancy::{
    Ack, Cluster, Labels, Plan, ResolutionError, TenancySettings, explain,
};
use serde_json::{Value, json};

use crate::objects::{ACK_NAMESPACE, objects, read};
use crate::stored::NAMESPACES;

/// The account of most roles.
pub const THEIRS: &str = "200000000001";

/// Another account.
pub const OTHER_ACCOUNT: &str = "200000000002";

/// The namespaces whose annotations the runtime does not read.
pub const IGNORED: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The name of the ConfigMap that maps accounts.
pub const ACCOUNT_MAP: &str = "ack-role-account-map";

/// The name of the ConfigMap that maps teams.
pub const TEAM_MAP: &str = "ack-role-team-map";

/// A case, which both the project and the original runtime resolve.
#[derive(Debug, Clone)]
pub struct Case {
    /// The Namespaces, ConfigMaps and selectors.
    pub objects: Vec<Value>,
    /// The namespace of the cluster and of its instances.
    pub namespace: String,
    /// The labels of the cluster and of its instances.
    pub labels: Value,
    /// Whether selectors are used instead of annotations.
    pub selectors: bool,
    /// `status.ackResourceMetadata.ownerAccountID`, or empty.
    pub owner_account: String,
}

/// The ARN of a role.
pub fn arn(account: &str, name: &str) -> String {
    format!("arn:aws:iam::{account}:role/{name}")
}

impl Case {
    /// A cluster in `tenant-a`, without any objects.
    pub fn new() -> Self {
        Self {
            objects: Vec::new(),
            namespace: NAMESPACES[0].to_owned(),
            labels: json!({}),
            selectors: false,
            owner_account: String::new(),
        }
    }

    /// Adds the Namespace of the cluster.
    pub fn namespace_with(&mut self, labels: &Value, annotations: &Value) {
        self.objects.push(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": self.namespace, "labels": labels, "annotations": annotations},
        }));
    }

    /// Adds a ConfigMap.
    pub fn map(&mut self, name: &str, data: &Value) {
        self.objects.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": ACK_NAMESPACE}, "data": data,
        }));
    }

    /// Adds a selector.
    pub fn selector(&mut self, name: &str, spec: Value) {
        self.objects.push(json!({
            "apiVersion": "services.k8s.aws/v1alpha1", "kind": "IAMRoleSelector",
            "metadata": {"name": name}, "spec": spec,
        }));
    }

    /// All objects of the case.
    pub fn all(&mut self) -> Vec<&mut Value> {
        self.objects.iter_mut().collect()
    }

    /// The object with this kind and name.
    pub fn object(&self, kind: &str, name: &str) -> Option<&Value> {
        let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
        self.objects.iter().find(is_it)
    }

    /// An annotation on the cluster's Namespace, if it is not empty.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        let namespace = self.object("Namespace", &self.namespace)?;
        let annotation = &namespace["metadata"]["annotations"][format!("services.k8s.aws/{name}")];
        annotation.as_str().filter(|value| !value.is_empty())
    }

    /// The visible case: the same case, changed so that the runtime reads all of it. The visible case has no status,
    /// and is in a namespace whose annotations the runtime reads.
    pub fn visible(&self) -> Self {
        let mut visible = self.clone();
        visible.owner_account.clear();
        if self.is_ignored() {
            visible.namespace = NAMESPACES[0].to_owned();
            let own = visible
                .objects
                .iter_mut()
                .filter(|object| object["kind"] == "Namespace");
            for namespace in own {
                namespace["metadata"]["name"] = json!(NAMESPACES[0]);
            }
        }
        visible
    }

    /// Whether the runtime does not read the annotations of the namespace.
    pub fn is_ignored(&self) -> bool {
        IGNORED.contains(&&*self.namespace)
    }

    /// The ConfigMap that determines the role, and the account or team that is looked up in this ConfigMap.
    pub fn looked_up(&self) -> Option<(&'static str, &str)> {
        if self.selectors {
            return None;
        }
        let team = self.annotation("team-id");
        let account = self.annotation("owner-account-id");
        team.map(|team| (TEAM_MAP, team))
            .or_else(|| account.map(|account| (ACCOUNT_MAP, account)))
    }

    /// The value for a key in a ConfigMap.
    pub fn data(&self, map: &str, key: &str) -> Option<&str> {
        self.object("ConfigMap", map)?["data"][key].as_str()
    }

    /// The case in the format for the judge.
    pub fn asked(&self) -> Value {
        let of_kind = |kind: &str| -> Vec<&Value> {
            self.objects
                .iter()
                .filter(|object| object["kind"] == kind)
                .collect()
        };
        json!({
            "namespaces": of_kind("Namespace"), "configMaps": of_kind("ConfigMap"),
            "selectors": of_kind("IAMRoleSelector"),
            "gates": {
                "TeamLevelCARM": !self.selectors, "ServiceLevelCARM": !self.selectors,
                "IAMRoleSelector": self.selectors,
            },
            "enableCARM": !self.selectors, "namespace": self.namespace, "labels": self.labels,
            "ownerAccountID": self.owner_account,
        })
    }

    /// The project's own resolution of the case.
    pub fn resolved(&self) -> Result<Plan, ResolutionError> {
        let cluster = Cluster {
            namespace: self.namespace.clone(),
            name: "c".to_owned(),
            labels: read::<Labels>(&self.labels),
            ..Cluster::default()
        };
        let ack = if self.selectors {
            Ack::RoleSelectors
        } else {
            Ack::Carm
        };
        let settings = TenancySettings {
            ack,
            ..TenancySettings::default()
        };
        explain(&objects(&self.objects), &cluster, None, None, settings).plan
    }
}
