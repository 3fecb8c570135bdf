# Events that several processes share.


def test_another_process_waits_for_an_event(check_pair):
    check_pair(
        """
        def child():
            data, event = there.get()
            assert isinstance(event, torch.kunlun.Event)
            assert event.query()
            back.put("queried")
            for round_ in range(5):
                assert there.get() == round_
                torch.kunlun.current_stream().wait_event(event)
                assert (data + 0).sum().item() == round_ * data.numel(), round_
                back.put(round_)
            event.synchronize()
            assert event.query()
        process = start(child)
        data = torch.zeros(1000, device="kunlun")
        weight = torch.ones(500, 500, device="kunlun")
        event = torch.kunlun.Event(interprocess=True)
        there.put((data, event))
        assert back.get() == "queried"
        for round_ in range(5):
            for _ in range(10):
                weight = weight @ weight / 500
            data.fill_(round_)
            event.record()
            there.put(round_)
            assert back.get() == round_
        process.join()
        assert process.exitcode == 0
        """
    )


def test_the_process_that_opened_an_event_may_record_it(check_pair):
    check_pair(
        """
        def child():
            data, event = there.get()
            stream = torch.kunlun.Stream()
            with torch.kunlun.stream(stream):
                data.fill_(4)
                assert stream.record_event(event) is event
            back.put("recorded")
            there.get()
        process = start(child)
        data = torch.zeros(1000, device="kunlun")
        event = torch.kunlun.Event(interprocess=True)
        event.record()
        event.synchronize()
        there.put((data, event))
        assert back.get() == "recorded"
        event.wait()
        assert data.sum().item() == 4000
        there.put("end")
        process.join()
        """
    )


def test_a_recorder_that_dies_is_an_error_for_who_waits(check_pair):
    check_pair(
        """
        def child():
            large = torch.ones(4096, 4096, device="kunlun")
            event = torch.kunlun.Event(interprocess=True)
            for _ in range(8):
                large = large @ large
            event.record()
            back.put(event)
            signal.pause()
        process = start(child)
        event = back.get()
        event.wait()
        result = torch.ones(2, device="kunlun") + 1
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        refused(torch.kunlun.synchronize, f"process {process.pid}, which had recorded the event")
        refused(event.synchronize, f"process {process.pid}, which had recorded the event")
        assert (torch.ones(2, device="kunlun") + 1).tolist() == [2, 2]
        """
    )


def test_handles(check_pair):
    check_pair(
        """
        event = torch.kunlun.Event(interprocess=True)
        assert "uninitialized" in repr(event)
        handle = event.ipc_handle()
        assert isinstance(handle, bytes) and len(handle) == 64
        assert hex(event.event_id) in repr(event)
        same = torch.kunlun.Event.from_ipc_handle(0, handle)
        torch.ones(1000, device="kunlun").mul_(2)
        event.record()
        same.synchronize()
        assert same.query() and event.query()
        refused(lambda: torch.kunlun.Event.from_ipc_handle(0, b"short"), "expects 64 bytes", ValueError)
        refused(lambda: torch.kunlun.Event.from_ipc_handle(0, bytes(64)), "no handle of an event", ValueError)
        refused(lambda: torch.kunlun.Event.from_ipc_handle(1, handle), "physical number 0", ValueError)
        refused(lambda: torch.kunlun.Event(True, interprocess=True), "choose one of the two", ValueError)
        refused(lambda: event.elapsed_time(same), "enable_timing=True", ValueError)
        from multiprocessing.reduction import ForkingPickler
        refused(lambda: ForkingPickler.dumps(torch.kunlun.Event()), "interprocess=True", TypeError)
        refused(lambda: ForkingPickler.dumps(torch.Event("cpu")), "cannot pickle 'torch.Event' object", TypeError)
        refused(lambda: event.record(torch.kunlun.default_stream(1)), "belongs to kunlun:0", ValueError)
        del event
        # What has been opened lives on; the handle itself went with the first event.
        same.record()
        same.synchronize()
        refused(lambda: torch.kunlun.Event.from_ipc_handle(0, handle), "cannot open an event of process")
        """
    )
