"""Several groups at the same time."""


def test_many_groups_in_another_order_on_each_rank(check_ranks):
    """More groups than a pool has streams: none waits behind another one's operation."""
    check_ranks(
        """
        start()
        groups = [dist.new_group() for _ in range(40)]
        tensors = [torch.ones(1000, device="kunlun") for _ in groups]
        for group, x in zip(groups, tensors):
            dist.all_reduce(x, group=group)  # connects
        torch.kunlun.synchronize()
        order = range(len(groups)) if rank == 0 else reversed(range(len(groups)))
        works = [dist.all_reduce(tensors[i], group=groups[i], async_op=True) for i in order]
        for work in works:
            work.wait(timedelta(seconds=20))
        for x in tensors:
            assert x.unique().tolist() == [4.0], x
        dist.destroy_process_group()
        """
    )
