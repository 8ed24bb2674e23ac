use std::error::Error as _;

use futures::executor::block_on;
use node_attestation_core::inventory::MachineState;

use super::*;

const VALID: &str = "\
apiVersion: attestation.cluster.x-k8s.io/v1alpha1
kind: MachineInventory
machines:
- name: worker-1
  nodeName: node-1
  providerID: demo:///worker-1
  addresses: [192.0.2.7, '2001:db8::7']
  dnsNames: [node-1.internal]
  tokenID: abcdef
  controlPlane: true
- name: worker-2
  providerID: demo:///worker-2
";

fn read_text(text: &str) -> Result<Read, String> {
    parse(Path::new("machines.yaml"), text).map_err(|error| {
        let cause = error.source().map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    })
}

fn parsed(text: &str) -> Result<StaticInventory, String> {
    read_text(text).map(|read| read.machines.unwrap())
}

/// The machines according to a file that lists them.
fn open(path: &Path) -> Arc<dyn Inventory> {
    ClusterInventory::open(path).unwrap().machines.unwrap()
}

fn by_id(inventory: &dyn Inventory, id: &str) -> Option<Machine> {
    block_on(inventory.by_provider_id(&ProviderId::parse(id).unwrap())).unwrap()
}

#[test]
fn an_inventory_file_lists_machines() {
    let inventory = parsed(VALID).unwrap();

    let machine = by_id(&inventory, "demo:///worker-1").unwrap();

    assert_eq!(machine.name, "worker-1");
    assert_eq!(machine.node_name.unwrap().as_str(), "node-1");
    assert_eq!(machine.addresses.len(), 2);
    assert_eq!(machine.dns_names, ["node-1.internal"]);
    assert!(machine.control_plane);
    assert_eq!(machine.token_id.unwrap().as_str(), "abcdef");
    assert_eq!(machine.state, MachineState::Ready);
}

#[test]
fn a_machine_without_a_node_name_uses_its_machine_name() {
    let inventory = parsed(VALID).unwrap();

    let machine = by_id(&inventory, "demo:///worker-2").unwrap();

    assert_eq!(machine.node_name.unwrap().as_str(), "worker-2");
    assert_eq!(machine.token_id, None);
}

#[test]
fn an_empty_inventory_list_is_accepted() {
    let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\nmachines: []\n");

    parsed(&text).unwrap();
}

#[test]
fn each_invalid_field_is_reported() {
    for (from, to, expected) in [
        (
            "v1alpha1",
            "v1",
            "machines.yaml: apiVersion is not attestation.cluster.x-k8s.io/v1alpha1",
        ),
        (
            "kind: MachineInventory",
            "kind: Inventory",
            "machines.yaml: kind is not MachineInventory",
        ),
        (
            "nodeName: node-1",
            "nodeName: Node",
            "machines.yaml: machines[0].nodeName: a node name",
        ),
        (
            "name: worker-2",
            "name: Worker",
            "machines.yaml: machines[1].name: a node name",
        ),
        (
            "name: worker-2",
            "name: ''",
            "machines.yaml: machines[1].name: empty",
        ),
        (
            "providerID: demo:///worker-2",
            "providerID: worker-2",
            "machines.yaml: machines[1].providerID: a provider ID",
        ),
        (
            "192.0.2.7",
            "192.0.2.700",
            "machines.yaml: machines[0].addresses: not an IP address",
        ),
        (
            "node-1.internal",
            "Node-1.internal",
            "machines.yaml: machines[0].dnsNames: not a DNS name",
        ),
        (
            "tokenID: abcdef",
            "tokenID: abc",
            "machines.yaml: machines[0].tokenID: a bootstrap",
        ),
        (
            "demo:///worker-2",
            "demo:///worker-1",
            "machines.yaml is ambiguous: machines worker-1 and worker-2 have the same provider ID",
        ),
        (
            "nodeName: node-1",
            "nodeName: worker-2",
            "machines.yaml is ambiguous: machines worker-1 and worker-2 have the same node name",
        ),
        (
            "tokenID: abcdef",
            "token: abcdef",
            "machines.yaml is not a list of machines: ",
        ),
        (
            "machines:",
            "machines",
            "machines.yaml is not a list of machines: ",
        ),
        (
            "machines:",
            "awsInstances: true\nmachines:",
            "machines.yaml: set either machines (a list) or awsInstances: true",
        ),
        (
            "machines:",
            "endpointHosts: [192.0.2.1, 'https://api']\nmachines:",
            "machines.yaml: endpointHosts[1]: must be an IP address, or a DNS name",
        ),
        (
            "machines:",
            "endpointHosts: ['api.example.com:6443']\nmachines:",
            "machines.yaml: endpointHosts[0]: must be an IP address, or a DNS name",
        ),
        (
            "machines:",
            "serviceRanges: [10.96.0.0/12, 10.0.0.1/8]\nmachines:",
            "machines.yaml: serviceRanges[1]: an address range must have the form",
        ),
        (
            "name: worker-2",
            "name: worker-2\n  name: x",
            "machines.yaml is not a list of machines: ",
        ),
    ] {
        let text = VALID.replacen(from, to, 1);
        assert_ne!(text, VALID, "{from}");

        let error = parsed(&text).unwrap_err();

        assert!(error.starts_with(expected), "{to}: {error}");
    }
}

#[test]
fn a_missing_or_unknown_field_is_reported_with_its_line() {
    for (from, to, what) in [
        ("  providerID: demo:///worker-2\n", "", "providerID"),
        ("tokenID: abcdef", "token: abcdef", "token"),
        ("kind: MachineInventory\n", "", "kind"),
    ] {
        let error = parsed(&VALID.replacen(from, to, 1)).unwrap_err();

        assert!(error.contains(what), "{error}");
        assert!(error.contains("line"), "{error}");
    }
}

#[test]
fn a_changed_inventory_file_is_read_at_the_next_lookup() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("machines.yaml");
    fs::write(&path, VALID).unwrap();
    let list = open(&path);
    assert_eq!(by_id(&*list, "demo:///worker-3"), None);

    fs::write(
        &path,
        format!("{VALID}- name: worker-3\n  providerID: demo:///worker-3\n"),
    )
    .unwrap();

    assert_eq!(by_id(&*list, "demo:///worker-3").unwrap().name, "worker-3");
}

#[test]
fn an_invalid_or_missing_file_keeps_the_previous_inventory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("machines.yaml");
    fs::write(&path, VALID).unwrap();
    let list = open(&path);

    fs::write(&path, "machines: [").unwrap();
    assert!(by_id(&*list, "demo:///worker-1").is_some());

    fs::remove_file(&path).unwrap();
    assert!(by_id(&*list, "demo:///worker-1").is_some());

    fs::write(&path, VALID.replace("worker-1", "worker-9")).unwrap();
    assert!(by_id(&*list, "demo:///worker-1").is_none());
}

#[test]
fn endpoint_hosts_and_service_ranges_are_read_only_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("machines.yaml");
    let with = |hosts: &str| {
        format!(
            "{VALID}endpointHosts: [{hosts}]\nserviceRanges: [10.96.0.0/12, '2001:db8::/112']\n"
        )
    };
    fs::write(&path, with("api.example.com, '2001:db8::6443'")).unwrap();
    let inventory = ClusterInventory::open(&path).unwrap();
    assert_eq!(
        inventory.endpoint_hosts,
        ["api.example.com", "2001:db8::6443"]
    );
    let ranges: Vec<_> = inventory
        .service_ranges
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(ranges, ["10.96.0.0/12", "2001:db8::/112"]);
    let list = inventory.machines.unwrap();

    fs::write(
        &path,
        with("other.example.com").replace("worker-1", "worker-9"),
    )
    .unwrap();
    assert!(by_id(&*list, "demo:///worker-1").is_some());

    let same = with("api.example.com, '2001:db8::6443'");
    fs::write(&path, same.replace("worker-1", "worker-9")).unwrap();
    assert!(by_id(&*list, "demo:///worker-1").is_none());
}

#[test]
fn an_inventory_file_must_list_either_machines_or_aws_instances() {
    let head = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n");
    let read = read_text(&format!("{head}awsInstances: true\n")).unwrap();
    assert!(read.machines.is_none());

    for neither in ["", "awsInstances: false\n"] {
        let error = read_text(&format!("{head}{neither}")).unwrap_err();
        assert!(
            error.starts_with("machines.yaml: set either machines"),
            "{error}"
        );
    }
}

#[test]
fn an_inventory_file_without_a_list_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("machines.yaml");

    let missing = ClusterInventory::open(&path).unwrap_err();
    assert!(missing.message.starts_with("cannot read "), "{missing:?}");

    fs::write(&path, [0xff, 0xfe, 0]).unwrap();
    let binary = ClusterInventory::open(&path).unwrap_err();
    assert!(binary.message.starts_with("cannot read "), "{binary:?}");

    let long = File::create(&path).unwrap();
    long.set_len(MAX_FILE_LEN + 1).unwrap();
    let long = ClusterInventory::open(&path).unwrap_err();
    let expected = format!("longer than {MAX_FILE_LEN} bytes");
    assert!(long.message.ends_with(&expected), "{long:?}");
}
