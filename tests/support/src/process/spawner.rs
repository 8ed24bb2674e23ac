//! The thread that starts all processes.
//!
//! The kernel sends the parent-death signal when the *thread* that started a process ends. The thread of a test ends
//! with the test, but the next test can share its processes. The thread in this module ends with the test process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender};
use std::sync::{LazyLock, Mutex};
use std::thread;

type Order = (Command, Sender<io::Result<Child>>);

static ORDERS: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
    let (orders, taken) = mpsc::channel::<Order>();
    thread::Builder::new()
        .name("spawner".to_owned())
        .spawn(move || {
            for (mut command, answer) in taken {
                // The sender waits for the answer, so this error cannot occur.
                answer.send(command.spawn()).ok();
            }
        })
        .expect("a thread can be started");
    Mutex::new(orders)
});

/// Starts `command` as the leader of its own process group.
pub(crate) fn spawn(mut command: Command) -> io::Result<Child> {
    command.process_group(0);
    let (answer, started) = mpsc::channel();
    let orders = ORDERS
        .lock()
        .expect("nothing panics while it holds the lock")
        .clone();
    orders
        .send((command, answer))
        .expect("the spawner never ends");
    started.recv().expect("the spawner always answers")
}
