//! The objects that create machines, and their bootstrap templates, reduced to whether their machines run the plugin.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::Deserializer;
use zeroize::Zeroizing;

use super::{Bootstrap, ConfigReference, Kept, Nothing, RawReference, Reference, is_deleting};

/// The text that shows that machines run the plugin. The paths of its drop-in and of its programs contain it.
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

/// Whether a text names the plugin. The text can contain secrets, so it is wiped.
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
