//! TPMs that fail.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};

/// TPM2_GetCapability, of one property.
const ASK: [u8; 22] = [
    0x80, 0x01, 0, 0, 0, 22, 0, 0, 0x01, 0x7a, 0, 0, 0, 6, 0, 0, 1, 0, 0, 0, 0, 1,
];

const GET: Commands = Commands::One(command::GET_CAPABILITY);

fn connect(proxy: &TpmProxy) -> TcpStream {
    let tcti = proxy.tcti();
    let (_, port) = tcti.rsplit_once('=').unwrap();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap()
}

/// The response code; nothing where the connection ends.
fn ask(stream: &mut TcpStream) -> Option<u32> {
    stream.write_all(&ASK).ok()?;
    let mut header = [0; 10];
    stream.read_exact(&mut header).ok()?;
    let size = u32::from_be_bytes(header[2..6].try_into().unwrap());
    let mut rest = vec![0; usize::try_from(size).unwrap() - header.len()];
    stream.read_exact(&mut rest).ok()?;
    Some(u32::from_be_bytes(header[6..].try_into().unwrap()))
}

fn run(tool: &str, tcti: &str) -> (bool, String) {
    let output = std::process::Command::new(tool)
        .args(["-T", tcti, "handles-persistent"])
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn a_client_of_libtss2_is_served_and_counted() {
    let tpm = Swtpm::start();
    let proxy = TpmProxy::before(&tpm);

    let (good, said) = run("tpm2_getcap", &proxy.tcti());

    assert!(good && said.contains("0x81010001"), "{said}");
    assert_eq!(
        proxy.count(command::GET_CAPABILITY),
        proxy.exchanges().len()
    );
    assert!(proxy.carried(&[0x81, 0x01, 0x00, 0x01]));
    assert!(!proxy.carried(&[0x81, 0x01, 0x00, 0x02]));
    proxy.forget();
    assert_eq!(proxy.count(command::GET_CAPABILITY), 0);
    let control = connect(&proxy).peer_addr().unwrap().port() + 1;
    let asked = std::process::Command::new("swtpm_ioctl")
        .args(["--tcp", &format!("127.0.0.1:{control}"), "-c"])
        .output()
        .unwrap();
    assert!(asked.status.success(), "{asked:?}");
    // It has let go of the TPM.
    tpm.persistent_handles();
}

#[test]
fn a_command_is_answered_with_a_code_as_often_as_it_is_meant_to() {
    let tpm = Swtpm::start();
    let proxy = TpmProxy::before(&tpm);
    let mut stream = connect(&proxy);
    proxy.inject(
        Commands::One(command::QUOTE),
        Times::always(),
        Fault::Answer(0x100),
    );
    proxy.inject(GET, Times::first(2), Fault::Answer(0x921));

    let answers: Vec<_> = (0..3).map(|_| ask(&mut stream)).collect();

    assert_eq!(answers, [Some(0x921), Some(0x921), Some(0)]);
    proxy.inject(Commands::All, Times::always(), Fault::Answer(0x101));
    drop(stream);
    let (good, said) = run("tpm2_getcap", &proxy.tcti());
    assert!(!good && said.contains("0x101"), "{said}");
    proxy.clear_faults();
    assert_eq!(ask(&mut connect(&proxy)), Some(0));
}

#[test]
fn a_tpm_is_slow_until_the_faults_are_cleared() {
    let tpm = Swtpm::start();
    let proxy = TpmProxy::before(&tpm);
    let mut stream = connect(&proxy);
    let late = Duration::from_millis(30);
    proxy.inject(GET, Times::once(), Fault::Slow(late));
    let asked = Instant::now();
    assert_eq!(ask(&mut stream), Some(0));
    assert!(asked.elapsed() >= late);

    proxy.inject(GET, Times::once(), Fault::Slow(Duration::MAX));
    stream.write_all(&ASK).unwrap();
    while proxy.count(command::GET_CAPABILITY) < 2 {
        std::thread::yield_now();
    }
    proxy.clear_faults();
    stream.read_exact(&mut [0; 10]).unwrap();
}

#[test]
fn a_command_that_hangs_leaves_the_tpm_to_others_and_ends_with_the_faults() {
    let tpm = Swtpm::start();
    let proxy = TpmProxy::before(&tpm);
    let mut stream = connect(&proxy);
    proxy.inject(GET, Times::once(), Fault::Hang);
    stream.write_all(&ASK).unwrap();
    while proxy.count(command::GET_CAPABILITY) == 0 {
        std::thread::yield_now();
    }

    tpm.persistent_handles();
    stream
        .set_read_timeout(Some(Duration::from_millis(30)))
        .unwrap();
    stream.read_exact(&mut [0; 1]).unwrap_err();
    proxy.clear_faults();
    stream.set_read_timeout(None).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_connection_is_cut() {
    let tpm = Swtpm::start();
    let proxy = TpmProxy::before(&tpm);
    proxy.inject(GET, Times::after(1), Fault::Cut);
    let mut stream = connect(&proxy);

    assert_eq!(ask(&mut stream), Some(0));
    assert_eq!(ask(&mut stream), None);
    let exchanges = proxy.exchanges();
    assert_eq!((exchanges.len(), exchanges[1].response.len()), (2, 0));
}

#[test]
fn a_proxy_ends_with_its_connections() {
    let tpm = Swtpm::start();
    let proxy = TpmProxy::before(&tpm);
    let (mut idle, mut hanging) = (connect(&proxy), connect(&proxy));
    proxy.inject(GET, Times::always(), Fault::Hang);
    hanging.write_all(&ASK).unwrap();
    while proxy.count(command::GET_CAPABILITY) == 0 {
        std::thread::yield_now();
    }

    drop(proxy);

    for stream in [&mut idle, &mut hanging] {
        // Reset or closed.
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or_default(), 0);
    }
}
