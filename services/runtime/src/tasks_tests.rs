//! Stopping, panics and names, on paused time.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::{Lost, Tasks};

#[tokio::test(start_paused = true)]
async fn stop_waits_for_tasks_that_listen_and_names_those_that_do_not() {
    let tasks = Tasks::new();
    let finished = Arc::new(AtomicBool::new(false));
    let (stopping, done) = (tasks.stopping(), finished.clone());
    tasks.spawn("listens", async move {
        stopping.await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        done.store(true, Ordering::SeqCst);
    });
    tasks.spawn("deaf", pending::<()>());
    tasks.spawn("deaf", pending::<()>());

    let unfinished = tasks.stop(Duration::from_secs(3)).await;

    assert!(finished.load(Ordering::SeqCst), "a task that listens may finish within the time");
    assert_eq!(unfinished.to_string(), "deaf ×2");
    assert!(tasks.running().is_empty(), "aborted tasks are dropped before stop returns");
}

#[tokio::test(start_paused = true)]
async fn stop_returns_at_once_when_everything_is_done() {
    let tasks = Tasks::new();
    assert_eq!(tasks.spawn("quick", async { 7 }).await, Ok(7));
    let before = tokio::time::Instant::now();
    assert!(tasks.stop(Duration::from_secs(60)).await.is_empty());
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn a_panic_ends_one_task_and_is_counted() {
    let tasks = Tasks::new();
    assert_eq!(tasks.spawn("bad", async { panic!("planted") }).await, Err::<(), _>(Lost::Panicked));
    assert_eq!(tasks.spawn_blocking("bad", || panic!("planted")).await, Err::<(), _>(Lost::Panicked));
    assert_eq!(tasks.panics(), 2);
    assert_eq!(tasks.spawn("good", async { 1 }).await, Ok(1));
    assert!(tasks.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_spawned_while_stopping_is_waited_for_and_after_it_is_dropped() {
    let tasks = Tasks::new();
    let (owner, stopping) = (tasks.clone(), tasks.stopping());
    tasks.spawn("parent", async move {
        stopping.await;
        owner.spawn("child", tokio::time::sleep(Duration::from_secs(1)));
    });
    assert!(tasks.stop(Duration::from_secs(2)).await.is_empty());
    assert_eq!(tasks.spawn("late", async {}).await, Err(Lost::Aborted));
    assert!(tasks.running().is_empty());
}

#[tokio::test]
async fn a_plain_thread_spawns_on_the_home_runtime() {
    let tasks = Tasks::new();
    let (sender, receiver) = mpsc::channel();
    let owner = tasks.clone();
    std::thread::spawn(move || sender.send(owner.spawn("from a thread", async { 5 }))).join().unwrap().unwrap();
    assert_eq!(receiver.recv().unwrap().await, Ok(5));
}

#[test]
fn without_any_runtime_a_task_is_lost_not_a_panic() {
    let task = Tasks::new().spawn("nowhere", async {});
    assert!(task.is_finished());
}

#[tokio::test]
async fn blocking_work_that_does_not_end_is_named() {
    let tasks = Tasks::new();
    let (release, wait) = mpsc::channel::<()>();
    tasks.spawn_blocking("sync thread", move || wait.recv().is_ok());
    let unfinished = tasks.stop(Duration::from_millis(10)).await;
    assert_eq!(unfinished.to_string(), "sync thread");
    release.send(()).unwrap();
}

#[tokio::test]
async fn thousands_of_tasks_from_many_threads_all_leave() {
    let tasks = Tasks::new();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let tasks = tasks.clone();
            std::thread::spawn(move || (0..2_000).for_each(|_| drop(tasks.spawn("short", async {}))))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(tasks.stop(Duration::from_secs(20)).await.is_empty());
    assert!(tasks.running().is_empty());
}

#[test]
fn a_task_for_a_runtime_that_is_gone_is_lost_and_holds_nobody_up() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tasks = runtime.block_on(async { Tasks::new() });
    drop(runtime);
    let task = tasks.spawn("late", async {});
    let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(other.block_on(task), Err(Lost::Aborted));
    assert!(tasks.running().is_empty());
}
