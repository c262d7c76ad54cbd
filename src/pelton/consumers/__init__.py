"""Consumers: delivery, redelivery, acks, exclusive subjects, priority groups."""

from pelton.consumers.deliver import Delivery as Delivery
from pelton.consumers.log import NEVER as NEVER
from pelton.consumers.log import ConsumerLog as ConsumerLog
from pelton.consumers.log import consumer_info as consumer_info
from pelton.consumers.log import drop_rows as drop_rows
from pelton.consumers.log import is_pending as is_pending
from pelton.consumers.rules import check_consumer as check_consumer
from pelton.consumers.rules import check_consumer_update as check_consumer_update
from pelton.consumers.rules import check_pull as check_pull
from pelton.consumers.rules import too_many_waiting as too_many_waiting
from pelton.consumers.settle import Interest as Interest
from pelton.consumers.settle import Settlement as Settlement
from pelton.consumers.settle import begin as begin
from pelton.consumers.settle import first_left as first_left
from pelton.consumers.settle import first_wanted as first_wanted
from pelton.consumers.settle import follow_purge as follow_purge
from pelton.consumers.settle import follow_roll_ups as follow_roll_ups
from pelton.consumers.settle import start_cursor as start_cursor
from pelton.consumers.turns import GroupDecision as GroupDecision
from pelton.consumers.turns import Puller as Puller
from pelton.consumers.turns import Turn as Turn
from pelton.consumers.turns import is_conditional as is_conditional
from pelton.consumers.turns import next_refresh as next_refresh
from pelton.consumers.turns import say_unpinned as say_unpinned
from pelton.consumers.turns import unpin as unpin
from pelton.consumers.turns import waiting_pulls as waiting_pulls
