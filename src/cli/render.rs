//! `render`.

use std::path::Path;

use kubelet_attestation::names::Provider;
use serde_json::{Map, Value, json};

use super::arguments::{
    Absent, Arguments, BootstrapApi, BootstrapFormat, KubeadmConfigOptions, Rendered,
};
use super::setup::{plain, this_program};
use super::{Session, answer};
use crate::authenticator::kubeconfig_failure;
use crate::failure::Failure;
use crate::kube::kubeconfig::Kubeconfig;
use crate::settings::CONFIG_FILE;
use crate::setup::{DropIn, ENVIRONMENT_FILE, exec_kubeconfig};

/// The command that has systemd read the drop-in, before kubeadm starts the kubelet.
const RELOAD: &str = "systemctl daemon-reload";

/// The kubelet's argument that has it ask for its serving certificate too: nothing else in Cluster API
/// has it do so.
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
                let settings = self.by_hand(arguments)?.settings;
                let path = settings.kubeconfig.unwrap_or(settings.bootstrap_kubeconfig);
                let endpoint = Kubeconfig::read_endpoint(&path);
                let endpoint = endpoint.map_err(|error| kubeconfig_failure(&error))?;
                exec_kubeconfig(&endpoint.to_fields(), &program)
            }
            Rendered::KubeletDropIn => drop_in.to_string(),
            Rendered::KubeadmConfig(options) => {
                answer::yaml(&kubeadm_config(options, self.serves(), drop_in))
            }
            Rendered::ClusterClass {
                api_version,
                absent,
                machine_pools,
            } => answer::yaml(&json!({
                "variables": [variable(self.attester.provider().as_str())],
                "patches": [patch(*api_version, self.serves(), absent, *machine_pools, drop_in)],
            })),
        };
        answer::print(text.as_bytes())
    }

    /// Whether kubelets are to ask for their serving certificates. Without evidence there is none to be
    /// had, and a kubelet that asks for it serves nothing until it has it.
    fn serves(&self) -> bool {
        self.attester.provider() != Provider::INSECURE
    }
}

/// A `KubeadmConfigTemplate` of machines whose image has the plugin.
fn kubeadm_config(options: &KubeadmConfigOptions, serves: bool, drop_in: DropIn<'_>) -> Value {
    let format = match options.format {
        BootstrapFormat::CloudConfig => "cloud-config",
        BootstrapFormat::Ignition => "ignition",
    };
    let mut files = vec![file(drop_in)];
    let mut arguments: Vec<_> = serves.then_some(FLAG).into_iter().collect();
    if let Some(id) = &options.provider_id_template {
        files.push(settings(id));
        arguments.push(("provider-id", id));
    }
    let mut registration = Map::new();
    if let Some(name) = &options.node_name_template {
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
    // Cluster API refuses what is empty.
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

/// The plugin's settings, where it is told who the machine is.
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

/// `kubeletExtraArgs`, a map in the one version and a list in the other.
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

/// The variable of a `ClusterClass` that turns the patch on, and names the attestors to the
/// controller. It has a default as a whole: the patch is looked at in every Cluster of the class.
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

/// The patch of a `ClusterClass` that has workers run the plugin.
///
/// Cluster API adds to a list, or to a map, only where there is one, and no patch can ask for that.
fn patch(
    api_version: BootstrapApi,
    serves: bool,
    absent: &[Absent],
    machine_pools: bool,
    drop_in: DropIn<'_>,
) -> Value {
    let every = json!({ "names": ["*"] });
    let workers = if machine_pools {
        json!({ "machineDeploymentClass": every, "machinePoolClass": every })
    } else {
        json!({ "machineDeploymentClass": every })
    };
    let item = |field: &str, is_absent: bool, item: &Value| {
        if is_absent {
            add(field, &json!([item]))
        } else {
            add(&format!("{field}/-"), item)
        }
    };
    let is_absent = |field| absent.contains(&field);
    let mut patches = vec![
        item("files", is_absent(Absent::Files), &file(drop_in)),
        item(
            "preKubeadmCommands",
            is_absent(Absent::PreKubeadmCommands),
            &json!(RELOAD),
        ),
    ];
    patches.extend(serves.then(|| add_argument(api_version, absent)));
    json!({
        "name": VARIABLE,
        "description": "Workers get their certificates through kubelet-authenticator.",
        "enabledIf": format!("{{{{ .{VARIABLE}.enabled }}}}"),
        "definitions": [{
            "selector": {
                "apiVersion": bootstrap_api(api_version),
                "kind": "KubeadmConfigTemplate",
                "matchResources": workers,
            },
            "jsonPatches": patches,
        }],
    })
}

fn add_argument(version: BootstrapApi, absent: &[Absent]) -> Value {
    let all = kubelet_arguments(version, &[FLAG]);
    let of_node = json!({ "kubeletExtraArgs": all });
    let (flag, value) = FLAG;
    if absent.contains(&Absent::JoinConfiguration) {
        add("joinConfiguration", &json!({ "nodeRegistration": of_node }))
    } else if absent.contains(&Absent::NodeRegistration) {
        add("joinConfiguration/nodeRegistration", &of_node)
    } else if absent.contains(&Absent::KubeletExtraArgs) {
        add("joinConfiguration/nodeRegistration/kubeletExtraArgs", &all)
    } else {
        let arguments = "joinConfiguration/nodeRegistration/kubeletExtraArgs";
        match version {
            BootstrapApi::V1beta1 => add(&format!("{arguments}/{flag}"), &json!(value)),
            BootstrapApi::V1beta2 => {
                let argument = json!({ "name": flag, "value": value });
                add(&format!("{arguments}/-"), &argument)
            }
        }
    }
}

/// A patch that adds this to the specification of the machines.
fn add(path: &str, value: &Value) -> Value {
    json!({ "op": "add", "path": format!("/spec/template/spec/{path}"), "value": value })
}
