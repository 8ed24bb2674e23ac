//! The command `render`.

use std::path::Path;

use kubelet_attestation::names::Provider;
use serde_json::{Map, Value, json};

use super::arguments::{
    Absent, Arguments, BootstrapApi, BootstrapFormat, ClusterClassOptions, KubeadmConfigOptions,
    Rendered, Templates,
};
use super::setup::{plain, this_program};
use super::{Session, answer};
use crate::failure::Failure;
use crate::kube::kubeconfig::Kubeconfig;
use crate::settings::CONFIG_FILE;
use crate::setup::{DropIn, ENVIRONMENT_FILE, exec_kubeconfig};

/// The command that makes systemd read the drop-in, before kubeadm starts the kubelet.
const RELOAD: &str = "systemctl daemon-reload";

/// The flag that makes the kubelet request its serving certificate. Nothing else in Cluster API
/// sets it.
const FLAG: (&str, &str) = ("rotate-server-certificates", "true");

/// The variable of a `ClusterClass`, and the name of its patch.
const VARIABLE: &str = "kubeletAuthentication";

impl Session {
    pub(super) fn render(
        &self,
        arguments: &Arguments,
        command: Option<&Path>,
        file: &Rendered,
    ) -> Result<(), Failure> {
        let program = match command {
            Some(path) => path.to_owned(),
            None => this_program()?,
        };
        plain("--command", &program)?;
        let drop_in = DropIn {
            program: &program,
            environment_file: Path::new(ENVIRONMENT_FILE),
        };
        let text = match file {
            Rendered::Kubeconfig => {
                let settings = self.interactive(arguments)?.settings;
                let path = settings.kubeconfig.unwrap_or(settings.bootstrap_kubeconfig);
                let endpoint = Kubeconfig::read_endpoint(&path)?;
                exec_kubeconfig(&endpoint.to_fields(), &program)
            }
            Rendered::KubeletDropIn => drop_in.to_string(),
            Rendered::KubeadmConfig(options) => {
                answer::yaml(&kubeadm_config(options, self.serves(), drop_in))
            }
            Rendered::ClusterClass(options) => answer::yaml(&json!({
                "variables": [variable(self.attester.provider().as_str())],
                "patches": [patch(options, self.serves(), drop_in)],
            })),
        };
        answer::print(text.as_bytes())
    }

    /// Whether kubelets are to request their serving certificates. Without evidence they would get
    /// none, and a kubelet that waits for one serves nothing.
    fn serves(&self) -> bool {
        self.attester.provider() != Provider::INSECURE
    }
}

/// A `KubeadmConfigTemplate` for machines whose image contains the plugin.
fn kubeadm_config(options: &KubeadmConfigOptions, serves: bool, drop_in: DropIn<'_>) -> Value {
    let format = match options.format {
        BootstrapFormat::CloudConfig => "cloud-config",
        BootstrapFormat::Ignition => "ignition",
    };
    let files = files(&options.templates, drop_in);
    let arguments = arguments(&options.templates, serves);
    let mut registration = Map::new();
    if let Some(name) = &options.templates.node_name_template {
        registration.insert("name".to_owned(), json!(name));
    }
    if !arguments.is_empty() {
        let arguments = kubelet_arguments(options.api_version, &arguments);
        registration.insert("kubeletExtraArgs".to_owned(), arguments);
    }
    let mut spec = json!({
        "format": format,
        "files": files,
        "preKubeadmCommands": [RELOAD],
    });
    // Cluster API rejects empty objects.
    if let (false, Some(spec)) = (registration.is_empty(), spec.as_object_mut()) {
        let join = json!({ "nodeRegistration": registration });
        spec.insert("joinConfiguration".to_owned(), join);
    }
    json!({
        "apiVersion": bootstrap_api(options.api_version),
        "kind": "KubeadmConfigTemplate",
        "metadata": { "name": options.name },
        "spec": { "template": { "spec": spec } },
    })
}

/// The files of a machine: the drop-in, and a settings file if there is a template of provider IDs.
fn files(templates: &Templates, drop_in: DropIn<'_>) -> Vec<Value> {
    let settings = templates.provider_id_template.as_deref().map(settings);
    [file(drop_in)].into_iter().chain(settings).collect()
}

fn arguments(templates: &Templates, serves: bool) -> Vec<(&str, &str)> {
    let provider_id = templates.provider_id_template.as_deref();
    let provider_id = provider_id.map(|id| ("provider-id", id));
    serves
        .then_some(FLAG)
        .into_iter()
        .chain(provider_id)
        .collect()
}

/// The settings file of the plugin.
fn settings(provider_id: &str) -> Value {
    let settings = json!({
        "apiVersion": "kubelet-authenticator.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthenticatorConfiguration",
        "providerID": provider_id,
    });
    json!({
        "path": CONFIG_FILE,
        "owner": "root:root",
        "permissions": "0644",
        "content": answer::yaml(&settings),
    })
}

fn bootstrap_api(version: BootstrapApi) -> &'static str {
    match version {
        BootstrapApi::V1beta1 => "bootstrap.cluster.x-k8s.io/v1beta1",
        BootstrapApi::V1beta2 => "bootstrap.cluster.x-k8s.io/v1beta2",
    }
}

fn file(drop_in: DropIn<'_>) -> Value {
    json!({
        "path": DropIn::PATH,
        "owner": "root:root",
        "permissions": "0644",
        "content": drop_in.to_string(),
    })
}

/// `kubeletExtraArgs`: a map in v1beta1, a list in v1beta2.
fn kubelet_arguments(version: BootstrapApi, arguments: &[(&str, &str)]) -> Value {
    let arguments = arguments.iter();
    match version {
        BootstrapApi::V1beta1 => arguments
            .map(|(flag, value)| ((*flag).to_owned(), json!(value)))
            .collect::<Map<_, _>>()
            .into(),
        BootstrapApi::V1beta2 => arguments
            .map(|(flag, value)| json!({ "name": flag, "value": value }))
            .collect(),
    }
}

/// The variable of a `ClusterClass` that enables the patch, and names the attestors to the
/// controller. The variable as a whole has a default, because every Cluster of the class evaluates
/// the patch.
fn variable(provider: &str) -> Value {
    json!({
        "name": VARIABLE,
        "required": false,
        "schema": { "openAPIV3Schema": {
            "type": "object",
            "default": { "enabled": false },
            "properties": {
                "enabled": {
                    "type": "boolean",
                    "default": false,
                    "description": "Whether workers get their certificates through kubelet-authenticator.",
                },
                "authorizedAttestors": {
                    "type": "array",
                    "default": [provider],
                    "minItems": 1,
                    "maxItems": 8,
                    "items": { "type": "string", "minLength": 1, "maxLength": 32 },
                    "description": "The attestation providers whose evidence is accepted.",
                },
            },
        } },
    })
}

/// The patch of a `ClusterClass` that makes workers run the plugin.
///
/// Cluster API adds to a list or a map only if that exists, and its patches cannot test for it.
/// Hence the option for absent fields.
fn patch(options: &ClusterClassOptions, serves: bool, drop_in: DropIn<'_>) -> Value {
    let every = json!({ "names": ["*"] });
    let workers = if options.machine_pools {
        json!({ "machineDeploymentClass": every, "machinePoolClass": every })
    } else {
        json!({ "machineDeploymentClass": every })
    };
    let is_absent = |field| options.absent.contains(&field);
    let mut patches = add_items(
        "files",
        is_absent(Absent::Files),
        &files(&options.templates, drop_in),
    );
    patches.extend(add_items(
        "preKubeadmCommands",
        is_absent(Absent::PreKubeadmCommands),
        &[json!(RELOAD)],
    ));
    patches.extend(add_registration(options, serves));
    json!({
        "name": VARIABLE,
        "description": "Workers get their certificates through kubelet-authenticator.",
        "enabledIf": format!("{{{{ .{VARIABLE}.enabled }}}}"),
        "definitions": [{
            "selector": {
                "apiVersion": bootstrap_api(options.api_version),
                "kind": "KubeadmConfigTemplate",
                "matchResources": workers,
            },
            "jsonPatches": patches,
        }],
    })
}

/// The patches that add these items to a list, or create the list.
fn add_items(field: &str, is_absent: bool, items: &[Value]) -> Vec<Value> {
    if is_absent {
        return vec![add(field, &json!(items))];
    }
    let end = format!("{field}/-");
    items.iter().map(|item| add(&end, item)).collect()
}

/// The patches that add the kubelet's arguments, and the node's name.
fn add_registration(options: &ClusterClassOptions, serves: bool) -> Vec<Value> {
    let arguments = arguments(&options.templates, serves);
    let name = options.templates.node_name_template.as_deref();
    let mut fields = Map::new();
    fields.extend(name.map(|name| ("name".to_owned(), json!(name))));
    if !arguments.is_empty() {
        let all = kubelet_arguments(options.api_version, &arguments);
        fields.insert("kubeletExtraArgs".to_owned(), all);
    }
    let is_absent = |field| options.absent.contains(&field);
    let (join, node) = ("joinConfiguration", "joinConfiguration/nodeRegistration");
    if fields.is_empty() {
        return Vec::new();
    } else if is_absent(Absent::JoinConfiguration) {
        return vec![add(join, &json!({ "nodeRegistration": fields }))];
    } else if is_absent(Absent::NodeRegistration) {
        return vec![add(node, &fields.into())];
    } else if is_absent(Absent::KubeletExtraArgs) {
        let fields = fields.iter();
        return fields
            .map(|(field, value)| add(&format!("{node}/{field}"), value))
            .collect();
    }
    let mut patches: Vec<_> = name
        .map(|name| add(&format!("{node}/name"), &json!(name)))
        .into_iter()
        .collect();
    let extra = format!("{node}/kubeletExtraArgs");
    patches.extend(
        arguments
            .iter()
            .map(|(flag, value)| match options.api_version {
                BootstrapApi::V1beta1 => add(&format!("{extra}/{flag}"), &json!(value)),
                BootstrapApi::V1beta2 => {
                    let argument = json!({ "name": flag, "value": value });
                    add(&format!("{extra}/-"), &argument)
                }
            }),
    );
    patches
}

/// A patch that adds `value` to the specification of the machines.
fn add(path: &str, value: &Value) -> Value {
    json!({ "op": "add", "path": format!("/spec/template/spec/{path}"), "value": value })
}
