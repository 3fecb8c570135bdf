# Tensors that several processes share.
import os
import textwrap

import pytest
from common_process import run_new_python


def test_both_processes_work_on_the_same_memory(check_pair):
    check_pair(
        """
        def child():
            tensor = there.get()
            assert tensor.device == torch.device("kunlun:1") and tensor.tolist() == list(range(8))
            tensor.add_(1)
            torch.kunlun.synchronize(1)
            back.put("added")
            assert there.get() == "changed"
            assert tensor.tolist() == [9] * 8
        process = start(child)
        tensor = torch.arange(8.0, device="kunlun:1")
        there.put(tensor)
        assert back.get() == "added"
        assert tensor.tolist() == list(range(1, 9))
        tensor.fill_(9)
        torch.kunlun.synchronize(1)
        there.put("changed")
        process.join()
        assert process.exitcode == 0
        assert torch.kunlun.current_device() == 0
        """
    )


def test_what_a_tensor_is_travels_with_it(check_pair):
    check_pair(
        """
        torch.sparse.check_sparse_tensor_invariants.disable()  # or torch warns that they are
        def tensors(device):
            base = torch.arange(24, dtype=torch.float64, device=device).reshape(2, 3, 4)
            complex_ = torch.complex(base, -base)
            yield base
            yield base[1, 1:, ::2]
            yield base.permute(2, 0, 1)
            yield base[0, 0, 3]
            yield base[:0]
            yield torch.empty(0, 5, device=device)
            yield base.to(torch.bfloat16)
            yield (base > 3)
            yield complex_.conj()
            yield complex_.conj().imag
            yield torch.nn.Parameter(base.clone())
            yield torch.nn.Parameter(base.int(), requires_grad=False)
            yield base.clone().requires_grad_()
            yield torch.ones(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
            yield base[0].to_sparse()
        def check(received, expected):
            assert type(received) is type(expected)
            assert received.dtype == expected.dtype and received.device.type == "kunlun"
            assert received.layout == expected.layout and received.requires_grad == expected.requires_grad
            assert received.is_conj() == expected.is_conj() and received.is_neg() == expected.is_neg()
            if received.layout == torch.strided:
                assert received.stride() == expected.stride()
                assert received.storage_offset() == expected.storage_offset()
            assert torch.equal(received.detach().cpu().to_dense(), expected.detach().to_dense())
        def child():
            for expected in tensors("cpu"):
                check(there.get(), expected)
            back.put("checked")
        process = start(child)
        sent = list(tensors("kunlun"))
        for tensor in sent:
            there.put(tensor)
        assert back.get() == "checked"
        process.join()
        """
    )


def test_views_of_one_storage_share_it_in_the_receiver_too(check_pair):
    check_pair(
        """
        def child():
            first, second = there.get()
            third = there.get()
            first.fill_(5)
            assert second.tolist() == [5, 5] and third.tolist() == [5, 5, 5, 5]
            assert first.untyped_storage().data_ptr() == third.untyped_storage().data_ptr()
            back.put("checked")
            there.get()
        process = start(child)
        whole = torch.zeros(4, device="kunlun")
        there.put((whole, whole[2:]))
        there.put(whole)
        assert back.get() == "checked"
        there.put("go")
        process.join()
        torch.kunlun.ipc_collect()
        del whole
        assert torch.kunlun.memory_allocated() == 0
        """
    )


def test_memory_is_kept_until_the_receiver_lets_go(check_pair):
    check_pair(
        """
        def child():
            tensor = there.get()
            back.put("received")
            there.get()
            assert tensor.sum().item() == tensor.numel()
            del tensor
            torch.kunlun.synchronize()
            back.put("released")
            there.get()
        process = start(child)
        before = torch.kunlun.memory_allocated()
        tensor = torch.ones(1 << 16, device="kunlun")
        size = torch.kunlun.memory_allocated() - before
        there.put(tensor)
        assert back.get() == "received"
        del tensor
        torch.kunlun.ipc_collect()
        assert torch.kunlun.memory_allocated() == before + size
        other = [torch.zeros(1 << 16, device="kunlun") for _ in range(8)]
        torch.kunlun.synchronize()
        there.put("look")
        assert back.get() == "released"
        del other
        torch.kunlun.ipc_collect()
        assert torch.kunlun.memory_allocated() == before
        there.put("end")
        process.join()
        """
    )


def test_memory_is_given_back_only_after_the_receivers_work(check_pair):
    check_pair(
        """
        def child():
            side = torch.kunlun.Stream()
            weight = torch.ones(600, 600, device="kunlun")
            tensor = there.get()
            with torch.kunlun.stream(side):
                for _ in range(20):
                    weight = weight @ weight / 600
                result = tensor * 2
            del tensor  # the side stream has not come to it yet
            back.put("released")
            torch.kunlun.synchronize()
            assert result.sum().item() == 2 * result.numel()
            back.put("checked")
            there.get()
        process = start(child)
        there.put(torch.ones(1 << 16, device="kunlun"))
        assert back.get() == "released"
        for _ in range(20):
            torch.kunlun.ipc_collect()
            torch.full((1 << 16,), 7.0, device="kunlun")
        torch.kunlun.synchronize()
        assert back.get() == "checked"
        torch.kunlun.ipc_collect()
        assert torch.kunlun.memory_allocated() == 0
        there.put("end")
        process.join()
        """
    )


def test_a_receiver_that_dies_leaves_nothing_behind(check_pair):
    check_pair(
        """
        def child():
            tensor = there.get()
            back.put("received")
            signal.pause()
        process = start(child)
        there.put(torch.ones(1 << 20, device="kunlun"))
        assert back.get() == "received"
        torch.kunlun.ipc_collect()
        assert torch.kunlun.memory_allocated() == 4 << 20
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        torch.kunlun.ipc_collect()
        assert torch.kunlun.memory_allocated() == 0
        """
    )


def test_a_sender_that_has_ended_is_an_error_and_what_was_received_stays(check_pair):
    check_pair(
        """
        def child():
            there.put(torch.full((1000,), 3.0, device="kunlun"))
            back.get()
            there.put(torch.ones(5, device="kunlun:1"))
            there.close()
            there.join_thread()
            os._exit(0)
        process = start(child)
        tensor = there.get()
        back.put("received")
        process.join()
        refused(there.get, f"cannot open device memory of process {process.pid}: that process has ended")
        assert (tensor * 2).sum().item() == 6000
        del tensor
        torch.kunlun.synchronize()
        """
    )


def test_a_sender_that_is_killed_before_the_receipt_is_an_error(check_pair):
    check_pair(
        """
        def child():
            there.put(torch.ones(1000, device="kunlun"))
            there.close()
            there.join_thread()
            back.put("sent")
            signal.pause()
        process = start(child)
        assert back.get() == "sent"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        refused(there.get, f"cannot reach process {process.pid}, which shares a kunlun tensor: that process has ended")
        assert torch.ones(3, device="kunlun").sum().item() == 3
        """
    )


@pytest.mark.parametrize("end", ["releases it", "is killed"])
def test_memory_that_a_receiver_has_given_up_is_found_before_memory_runs_out(check_pair, end):
    check_pair(
        """
        def child():
            tensor = there.get()
            back.put("received")
            if END == "releases it":
                del tensor
                torch.kunlun.synchronize()
                back.put("released")
            signal.pause()
        process = start(child)
        tensor = torch.ones(10 << 20, device="kunlun")
        there.put(tensor)
        assert back.get() == "received"
        del tensor
        if END == "releases it":
            assert back.get() == "released"
        else:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        # Twice the 40 MiB do not fit.
        assert torch.zeros(10 << 20, device="kunlun").sum().item() == 0
        assert torch.kunlun.memory_stats()["num_ooms"] == 0
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        """.replace("END", repr(end)),
        KUNLUN_SIM_MEMORY="64M",
    )


def test_what_cannot_be_sent_is_refused(check_pair):
    check_pair(
        """
        import pickle
        from multiprocessing.reduction import ForkingPickler
        def child():
            received = there.get()
            refused(lambda: ForkingPickler.dumps(received), "received from another process")
            refused(lambda: received.untyped_storage().resize_(64), "not resizable")
            message = there.get()
            first = pickle.loads(message)
            del first
            refused(lambda: pickle.loads(message), "has been received already")
            back.put("checked")
        process = start(child)
        tensor = torch.ones(4, device="kunlun", requires_grad=True)
        refused(lambda: ForkingPickler.dumps(tensor * 2), "Cowardly refusing to serialize non-leaf tensor")
        refused(lambda: ForkingPickler.dumps(tensor.untyped_storage()), "Cannot pickle kunlun storage")
        # To the sender itself it is the same memory; each message is good for one receiver.
        message = bytes(ForkingPickler.dumps(tensor.detach()))
        received = pickle.loads(message)
        assert received.data_ptr() == tensor.data_ptr()
        refused(lambda: pickle.loads(message), "has been received already")
        refused(lambda: tensor.untyped_storage().resize_(64), "not resizable")
        torch.kunlun.ipc_collect()
        received.untyped_storage().resize_(64)
        there.put(torch.ones(4, device="kunlun"))
        there.put(bytes(ForkingPickler.dumps(torch.ones(3, device="kunlun"))))
        assert back.get() == "checked"
        process.join()
        """
    )


def test_a_child_forked_after_first_use_gets_a_clear_error(check_pair):
    check_pair(
        """
        tensor = torch.ones(4, device="kunlun")
        def child():
            refused(there.get, "Cannot re-initialize kunlun in forked subprocess")
            from multiprocessing.reduction import ForkingPickler
            refused(lambda: ForkingPickler.dumps(tensor), "Cannot re-initialize kunlun in forked subprocess")
            back.put(tensor)
        process = start(child)
        there.put(tensor)
        # The error comes in place of the tensor: nobody waits for ever.
        refused(back.get, "could not be sent by the other process: Cannot re-initialize kunlun in forked subprocess")
        process.join()
        assert process.exitcode == 0
        """
    )


def test_a_message_that_cannot_be_sent_raises_in_the_receiver(check_pair):
    check_pair(
        """
        def child():
            leaf = torch.ones(2, device="kunlun", requires_grad=True)
            back.put(leaf * 2)
            back.put(leaf.untyped_storage())
            back.put(leaf)
            there.get()
        process = start(child)
        refused(back.get, "could not be sent by the other process: Cowardly refusing")
        refused(back.get, "could not be sent by the other process: Cannot pickle kunlun storage")
        assert back.get().tolist() == [1, 1]
        there.put("end")
        process.join()
        """
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to try")
def test_another_user_cannot_map_the_memory(check_pair):
    check_pair(
        """
        def child():
            os.setgid(65534)
            os.setuid(65534)
            refused(there.get, "of different users")
            back.put("refused")
        process = start(child)
        there.put(torch.ones(4, device="kunlun"))
        assert back.get() == "refused"
        process.join()
        """
    )


def test_a_device_that_the_receiver_does_not_see_is_named(check_pair):
    check_pair(
        """
        def child():
            os.environ["KUNLUN_VISIBLE_DEVICES"] = "1"
            received = there.get()
            assert received.device == torch.device("kunlun:0") and received.tolist() == [1, 1]
            refused(there.get, "card with physical number 0, which this process does not see")
            back.put("checked")
        process = start(child)
        there.put(torch.ones(2, device="kunlun:1"))
        there.put(torch.ones(2, device="kunlun:0"))
        assert back.get() == "checked"
        process.join()
        """
    )


def test_many_tensors_in_both_directions_leave_nothing(check_pair):
    check_pair(
        """
        def child():
            while (tensor := there.get()) is not None:
                back.put(tensor + 1)
                del tensor
            signal.pause()
        process = start(child)
        for round_ in range(200):
            there.put(torch.full((1000,), float(round_), device="kunlun"))
            assert back.get()[17].item() == round_ + 1
            if round_ == 20:
                files, reserved = len(os.listdir("/proc/self/fd")), torch.kunlun.memory_reserved()
        assert len(os.listdir("/proc/self/fd")) <= files + 2
        assert torch.kunlun.memory_reserved() == reserved
        there.put(None)
        torch.kunlun.ipc_collect()
        assert torch.kunlun.memory_allocated() <= 2 * 4096
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        """
    )


def test_spawned_workers_of_a_dataloader_return_tensors_of_the_device(tmp_path):
    module = """
        import torch
        class Squares(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return torch.full((3,), float(index * index), device="kunlun")
    """
    (tmp_path / "squares.py").write_text(textwrap.dedent(module))
    done = run_new_python(
        """
        import torch
        from squares import Squares
        if __name__ == "__main__":
            loader = torch.utils.data.DataLoader(
                Squares(), batch_size=2, num_workers=1, multiprocessing_context="spawn", timeout=100
            )
            batches = list(loader)
            assert all(batch.device.type == "kunlun" for batch in batches)
            assert torch.cat(batches)[:, 1].tolist() == [index * index for index in range(8)]
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
