use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

/// A shell script that creates the group, reports this, and removes the group when its standard input, a pipe from the
/// test process, is closed. It tries several times, because processes in the group might still be stopping.
const KEEPER: &str = r#"group=$1 cpuset=$2
if [ -e /sys/fs/cgroup/cgroup.procs ]; then set /sys/fs/cgroup; else set /sys/fs/cgroup/*/; fi
for hierarchy; do
  # A link is a second name: cpu of cpu,cpuacct.
  [ ! -L "${hierarchy%/}" ] || continue
  case $hierarchy in
    # Takes no process before it is told of processors. Only a container runtime makes groups in it.
    */cpuset/)
      [ "$cpuset" ] || continue
      mkdir "$hierarchy/$group"
      for file in cpuset.cpus cpuset.mems; do cat "$hierarchy/$file" >"$hierarchy/$group/$file"; done
      ;;
    *) mkdir "$hierarchy/$group" ;;
  esac
done
echo made
cat
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  left=
  for hierarchy; do
    [ -e "$hierarchy/$group" ] || continue
    find "$hierarchy/$group" -depth -type d -exec rmdir {} + 2>/dev/null || left=1
  done
  [ "$left" ] || exit 0
  sleep 0.2
done"#;

/// A control group in each hierarchy, in which the systemd of a machine creates its own groups. The control group is
/// removed with all its contents when this value is dropped, or when the test process ends.
#[derive(Debug)]
pub(super) struct ControlGroup {
    name: String,
    // Dropping this value ends the keeper.
    input: Option<ChildStdin>,
    keeper: Child,
}

impl ControlGroup {
    /// Creates the group. A machine without `cpuset` is in the host's group of that hierarchy.
    #[track_caller]
    pub(super) fn make(name: String, cpuset: bool) -> Self {
        let cpuset = if cpuset { "cpuset" } else { "" };
        let mut keeper = Command::new("sh")
            .args(["-euc", KEEPER, "keeper", &name, cpuset])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // The keeper outlives the test process, even if a signal ends the process group of the tests.
            .process_group(0)
            .spawn()
            .expect("sh can be started");
        let input = keeper.stdin.take();
        let mut said = String::new();
        let stdout = keeper.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut said).ok();
        if said != "made\n" {
            if let Some(mut stderr) = keeper.stderr.take() {
                stderr.read_to_string(&mut said).ok();
            }
            keeper.wait().ok();
            panic!("a machine needs control groups below /sys/fs/cgroup: {said}");
        }
        Self {
            name,
            input,
            keeper,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        drop(self.input.take());
        self.keeper.wait().ok();
    }
}
