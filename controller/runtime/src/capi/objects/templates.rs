//! The objects that create machines, and their bootstrap templates, reduced to the information whether their machines
//! run the plugin.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use super::{
    Bootstrap, ConfigReference, Kept, MAX_KIND_LEN, Nothing, RawReference, Reference, is_deleting,
};

/// The text that shows that machines run the plugin. The paths of the plugin's drop-in and of its programs contain this
/// text.
const PLUGIN: &str = "kubelet-authenticator";

/// The kind of the bootstrap templates that are read.
const TEMPLATE: &str = "KubeadmConfigTemplate";

/// The part of a `KubeadmConfigSpec` to decode.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct MachineSpec {
    files: Option<Vec<File>>,
    pre_kubeadm_commands: Option<Vec<Mention>>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct File {
    #[serde(default)]
    path: Mention,
    #[serde(default)]
    content: Mention,
}

/// Whether a string contains the plugin's name. The string can contain secrets, so it is wiped.
#[derive(Debug, Clone, Copy, Default)]
struct Mention(bool);

impl<'de> Deserialize<'de> for Mention {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Option::<Zeroizing<String>>::deserialize(deserializer)?;
        Ok(Self(text.is_some_and(|text| text.contains(PLUGIN))))
    }
}

impl MachineSpec {
    fn has_plugin(&self) -> bool {
        let mut files = self.files.iter().flatten();
        let mut commands = self.pre_kubeadm_commands.iter().flatten();
        files.any(|file| file.path.0 || file.content.0) || commands.any(|command| command.0)
    }
}

/// The required fields of a `MachineDeployment`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct MachineDeployment {
    pub(in crate::capi) deleting: bool,
    /// The `KubeadmConfigTemplate`. `None` for other bootstrap providers, whose templates are not read.
    pub(in crate::capi) template: Option<Reference>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(in crate::capi) struct DeploymentSpec {
    template: Option<DeploymentTemplate>,
}

#[derive(Debug, Clone, Deserialize)]
struct DeploymentTemplate {
    spec: Option<DeploymentMachine>,
}

#[derive(Debug, Clone, Deserialize)]
struct DeploymentMachine {
    bootstrap: Option<Bootstrap>,
}

impl Kept for MachineDeployment {
    type Spec = DeploymentSpec;
    type Status = Nothing;

    fn kept(metadata: ObjectMeta, spec: DeploymentSpec, _: Nothing) -> Option<Self> {
        let machine = spec.template.and_then(|template| template.spec);
        let bootstrap = machine.and_then(|machine| machine.bootstrap);
        let reference: Option<RawReference> = bootstrap.and_then(|one| one.config_ref);
        let template = Reference::within(metadata.namespace.as_deref()?, reference);
        Some(Self {
            deleting: is_deleting(&metadata),
            template: template
                .filter(|one| one.group == ConfigReference::GROUP && one.kind == TEMPLATE),
        })
    }
}

/// The required fields of a `KubeadmControlPlane`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capi) struct KubeadmControlPlane {
    pub(in crate::capi) deleting: bool,
    /// Whether its next machines run the plugin.
    pub(in crate::capi) has_plugin: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct ControlPlaneSpec {
    kubeadm_config_spec: Option<MachineSpec>,
}

impl Kept for KubeadmControlPlane {
    type Spec = ControlPlaneSpec;
    type Status = Nothing;

    fn kept(metadata: ObjectMeta, spec: ControlPlaneSpec, _: Nothing) -> Option<Self> {
        let machine = spec.kubeadm_config_spec.unwrap_or_default();
        Some(Self {
            deleting: is_deleting(&metadata),
            has_plugin: machine.has_plugin(),
        })
    }
}

/// The required field of a Cluster: its control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct ControlPlaneOf {
    /// `spec.controlPlaneRef`.
    pub(in crate::capi) reference: Option<ControlPlaneReference>,
}

/// The reference to a control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) enum ControlPlaneReference {
    /// An object in the namespace of the Cluster.
    Valid(Reference),
    /// The reference does not name an object in the namespace of the Cluster. The value is the kind in the reference,
    /// which can be empty.
    Invalid(String),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct ClusterSpec {
    control_plane_ref: Option<RawReference>,
}

impl Kept for ControlPlaneOf {
    type Spec = ClusterSpec;
    type Status = Nothing;

    fn kept(metadata: ObjectMeta, spec: ClusterSpec, _: Nothing) -> Option<Self> {
        let namespace = metadata.namespace.as_deref()?;
        let reference = spec.control_plane_ref.map(|raw| {
            let kind = raw.kind.clone().filter(|kind| kind.len() <= MAX_KIND_LEN);
            let valid = Reference::within(namespace, Some(raw));
            let invalid = || ControlPlaneReference::Invalid(kind.unwrap_or_default());
            valid.map_or_else(invalid, ControlPlaneReference::Valid)
        });
        Some(Self { reference })
    }
}

/// The required fields of a control plane of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capi) struct AnyControlPlane {
    pub(in crate::capi) deleting: bool,
    /// Whether any text in its spec names the plugin. The contract of Cluster API does not define where a control plane
    /// has the files and commands of its machines.
    pub(in crate::capi) has_plugin: bool,
}

/// Whether any text in a value names the plugin. The value can contain secrets, so it is wiped.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::capi) struct Mentions(bool);

impl<'de> Deserialize<'de> for Mentions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A raw value has no depth limit.
        let value = Box::<RawValue>::deserialize(deserializer)?;
        let text = Zeroizing::new(String::from(Box::<str>::from(value)));
        Ok(Self(text.contains(PLUGIN)))
    }
}

impl Kept for AnyControlPlane {
    type Spec = Mentions;
    type Status = Nothing;

    fn kept(metadata: ObjectMeta, spec: Mentions, _: Nothing) -> Option<Self> {
        Some(Self {
            deleting: is_deleting(&metadata),
            has_plugin: spec.0,
        })
    }
}

/// The required field of a `KubeadmConfigTemplate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capi) struct MachineTemplate {
    /// Whether its machines run the plugin.
    pub(in crate::capi) has_plugin: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(in crate::capi) struct TemplateSpec {
    template: Option<TemplateOfSpec>,
}

#[derive(Debug, Clone, Deserialize)]
struct TemplateOfSpec {
    spec: Option<MachineSpec>,
}

impl Kept for MachineTemplate {
    type Spec = TemplateSpec;
    type Status = Nothing;

    fn kept(_: ObjectMeta, spec: TemplateSpec, _: Nothing) -> Option<Self> {
        let machine = spec.template.and_then(|template| template.spec);
        let machine = machine.unwrap_or_default();
        Some(Self {
            has_plugin: machine.has_plugin(),
        })
    }
}

/// The required field of the `KubeadmConfig` of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capi) struct PoolConfig {
    /// Whether the members of the pool run the plugin.
    pub(in crate::capi) has_plugin: bool,
}

impl Kept for PoolConfig {
    type Spec = MachineSpec;
    type Status = Nothing;

    fn kept(_: ObjectMeta, spec: MachineSpec, _: Nothing) -> Option<Self> {
        Some(Self {
            has_plugin: spec.has_plugin(),
        })
    }
}
